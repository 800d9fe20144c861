-- Any new value makes a new run.
obj.metadata.annotations = obj.metadata.annotations or {}
obj.metadata.annotations["inferbench.dev/rerun"] = os.date("!%Y-%m-%dT%XZ")
return obj
