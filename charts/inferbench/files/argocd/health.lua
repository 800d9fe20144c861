local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(kind, value)
  return conditions[kind] ~= nil and conditions[kind].status == value
end

-- -1 until the operator has seen the object, by a default of the CRD.
if status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "The operator has not seen this generation yet."}
end

-- An annotation makes no new generation. The operator keeps 64 characters of it, and starts no run while it can't.
local asked = (obj.metadata.annotations or {})["inferbench.dev/rerun"] or ""
local taken_up = (status.run or {}).rerun or ""
if asked ~= "" and asked ~= taken_up and #asked <= 64 and not is("Accepted", "False") then
  return {status = "Progressing", message = "The operator has not started the rerun that is asked for yet."}
end

if is("Reconciling", "True") then
  return {status = "Progressing", message = conditions.Reconciling.message}
elseif is("Stalled", "True") then
  return {status = "Degraded", message = conditions.Stalled.message}
elseif is("Ready", "True") then
  return {status = "Healthy", message = conditions.Ready.message}
elseif is("Suspended", "True") then
  return {status = "Suspended", message = (conditions.Ready or conditions.Suspended).message}
end
return {status = "Progressing", message = (conditions.Ready or {}).message or "Waiting for the operator."}
