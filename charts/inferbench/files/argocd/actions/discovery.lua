local spec, status = obj.spec or {}, obj.status or {}
local suspended, cancelled = spec.suspend == true, spec.cancel == true
local refused = false
for _, condition in ipairs(status.conditions or {}) do
  refused = refused or (condition.type == "Accepted" and condition.status == "False")
end
local seen = status.observedGeneration == obj.metadata.generation
local cells = status.cells or {}
-- What is refused after its run has started may have Jobs that go on.
local at_work = (cells.running or 0) + (cells.waiting or 0) > 0
local idle = seen and ((status.run or {}).completionTime ~= nil or (refused and not at_work))

return {
  rerun = {
    displayName = "Rerun",
    iconClass = "fa fa-fw fa-redo",
    disabled = suspended or cancelled or (seen and refused),
  },
  suspend = {
    displayName = "Suspend",
    iconClass = "fa fa-fw fa-pause-circle",
    -- While nothing goes on, there is still the schedule to suspend.
    disabled = suspended or cancelled or (idle and spec.schedule == nil),
  },
  resume = {
    displayName = "Resume",
    iconClass = "fa fa-fw fa-play-circle",
    disabled = not (suspended or cancelled),
  },
  cancel = {
    displayName = "Cancel",
    iconClass = "fa fa-fw fa-stop-circle",
    disabled = cancelled or idle,
  },
}
