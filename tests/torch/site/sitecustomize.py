"""A user's own sitecustomize, for the tests: the recording's hook must run it too.

On a device that runs no kernels, reads give zeros, and transformers would take zeros for positions of packed sequences and
build a mask. Batches here are never packed, which is what it would find on a real device.
"""
import os
import sys

sys.vram_budget_test_site = True
if os.environ.get("VRAM_BUDGET_PHANTOM"):
    from importlib import abc, machinery

    class Finder(abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name != "transformers.masking_utils":
                return None
            spec = machinery.PathFinder.find_spec(name, path, target)
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                module.find_packed_sequence_indices = lambda position_ids: None
            spec.loader.exec_module = exec_module
            return spec
    sys.meta_path.insert(0, Finder())
