#!/usr/bin/env python3
"""Answers scripts with refsim.py: JSON lines {version, alloc_conf, total_mb, events} in, JSON lines out.

Each answer has the figures after every event, the first failures' figures and the segments at the end.
"""
import json
import sys

import refsim


def answer(script):
    config = refsim.Config.parse(script["alloc_conf"], **refsim.quirks(script["version"]))
    allocator = refsim.Allocator(config, total=script["total_mb"] * refsim.MiB)
    live, figures, ooms = {}, [], []
    for index, event in enumerate(script["events"]):
        op = event["op"]
        if op == "alloc":
            try:
                live[event["id"]] = allocator.malloc(event["bytes"], event["stream"])
            except refsim.OutOfMemory as error:
                ooms.append([index, error.args[0]])
        elif op == "free":
            block = live.pop(event["id"], None)
            if block is not None:
                allocator.free(block)
        elif op == "record_stream":
            block = live.get(event["id"])
            if block is not None:
                allocator.record_stream(block, event["stream"])
        elif op == "empty_cache":
            allocator.empty_cache()
        elif op == "events_pending":
            allocator.events_done = not event["value"]
        elif op == "set_fraction":
            allocator.set_fraction(event["value"])
        else:
            getattr(allocator, op)(event["pool"])
        s = allocator.stats()
        figures.append([s["alloc"], s["req"], s["active"], s["resv"], s["inact"], s["retries"], s["ooms"]])
    return {"figures": figures, "ooms": ooms, "segments": allocator.segments()}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))))
