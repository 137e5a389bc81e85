"""What TensorBoard's own reader finds in a directory: of each tag its [step, value], as JSON."""
import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
print(json.dumps({tag: [[of.step, of.value] for of in events.Scalars(tag)] for tag in events.Tags()["scalars"]}, indent=1))
