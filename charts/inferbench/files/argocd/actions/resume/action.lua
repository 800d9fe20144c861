obj.spec.suspend = false
obj.spec.cancel = false
return obj
