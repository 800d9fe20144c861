obj.spec.cancel = true
return obj
