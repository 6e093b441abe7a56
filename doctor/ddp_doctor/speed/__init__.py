"""--speed: what input and communication cost, by windows of steps in turns without one of them."""

KINDS = ("plain", "input", "communication")  # as it is, and what the others are without
SPEED = "DOCTOR_SPEED"  # environment variable: the process is measured, and not recorded
PLAN = "plan.json"  # in the folder of events: how long windows are
WARM = 6  # steps before the first window; of the last three the time is taken
