"""The inside view of `vram-budget record`: runs in the training process as its sitecustomize, changes nothing in it.

It chains to the process's own sitecustomize, waits until `torch` is imported, and then marks forward, backward and
optimizer steps by PyTorch's global hooks. What it reads goes as JSON lines, one write each, into the run's directory. An
error in here is noted there and ends the measurement, never the training.
"""
import os
import sys

DIRECTORY = os.environ.get("VRAM_BUDGET_RECORD_DIR")


def chain():
    """Runs the sitecustomize that this one hides, and leaves sys.path as it would have been."""
    from importlib import machinery, util
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != here]
    spec = machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class AfterTorch:
    """Finds `torch` as the other finders do, and starts the recorder once it is whole."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        for finder in [f for f in sys.meta_path if f is not self]:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                run = spec.loader.exec_module

                def exec_module(module):
                    if self in sys.meta_path:  # others only ask where it would be
                        sys.meta_path.remove(self)
                    run(module)
                    try:
                        Recorder(module).install()
                    except Exception as error:  # a PyTorch that is not as expected: train on
                        Lines().write(t="note", text=f"the hook could not be installed: {error!r}")

                spec.loader.exec_module = exec_module
                return spec
        return None


def options():
    import json
    with open(os.path.join(DIRECTORY, "options.json")) as file:
        return json.load(file)


class Lines:
    """The run's file of this process, made with the first line. Each line is one write: what is in it survives a kill."""

    def __init__(self):
        self.file, self.pid, self.failed = None, os.getpid(), None

    def write(self, **fields):
        import json
        if self.failed or os.getpid() != self.pid:  # a fork is another process: it has no file
            return
        try:
            if self.file is None:
                path = os.path.join(DIRECTORY, f"process-{os.uname().nodename}-{self.pid}.jsonl")
                self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
                self.write(**start_of_process())
            line = (json.dumps(fields, default=str) + "\n").encode()
            if os.write(self.file, line) != len(line):
                raise OSError("the disk is full")
        except OSError as error:
            self.failed = str(error)
            sys.stderr.write(f"vram-budget: no more is recorded of process {self.pid}: {error}\n")


def start_of_process():
    """What process it is. Its rank is torch.distributed's, or what launchers say in the environment, which is read later."""
    import time
    dist = sys.modules.get("torch.distributed")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist and dist.is_available() and dist.is_initialized() else (None, None)
    return dict(t="start", pid=os.getpid(), host=os.uname().nodename, rank=rank, world_size=world, at=time.time(), argv=sys.argv[:1],
                environment={name: os.environ[name] for name in options()["variables"] if name in os.environ})


def guarded(method):
    """An error in here ends the measurement and is noted; the training goes on."""
    def call(self, *args, **kwargs):
        if self.over:
            return None
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            import traceback
            at = traceback.extract_tb(error.__traceback__)[-1]
            self.note(f"the hook failed, and nothing was measured after it: {error!r} ({os.path.basename(at.filename)}, line {at.lineno})")
            self.stop()
        return None
    call.__name__ = method.__name__
    return call


class Memory:
    """The allocator's statistics on one device. Peaks are reset at every mark, and what others read is as if they were not."""

    def __init__(self, torch):
        c = torch._C
        self.cuda, self.raw, self.reset = torch.cuda, c._cuda_memoryStats, c._cuda_resetPeakMemoryStats
        self.device, self.carried, self.kept = None, [], [0, 0, 0]

        def wrap(name, call):
            if hasattr(c, name):
                of = getattr(c, name)
                setattr(c, name, lambda device, of=of: call(of, device))
        wrap("_cuda_memoryStats", self.read)
        wrap("_accelerator_getDeviceStats", self.read)
        wrap("_cuda_resetPeakMemoryStats", self.reset_by_others)
        wrap("_accelerator_resetPeakStats", self.reset_by_others)

    @staticmethod
    def three(stats):
        return [stats[k]["all"]["peak"] for k in ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")]

    def mark(self):
        """(allocated, its peak since the last mark, reserved, its peak, inactive split, its peak), or None without a GPU."""
        if self.device is None or not self.cuda.is_initialized():
            return None
        stats = self.raw(self.device)
        self.carried.append(stats)
        if len(self.carried) > 64:
            self.carried = [self.merged()]
        self.reset(self.device)
        peaks, self.kept = [max(p) for p in zip(self.three(stats), self.kept)], [0, 0, 0]
        now = [stats[k]["all"]["current"] for k in ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")]
        return [value for pair in zip(now, peaks) for value in pair]

    def merged(self):
        def highest(into, other):
            for key, value in other.items():
                if isinstance(value, dict):
                    highest(into.setdefault(key, {}), value)
                elif key == "peak":
                    into[key] = max(into.get(key, 0), value)
        found = {}
        for stats in self.carried:
            highest(found, stats)
        return found

    def read(self, of, device):
        stats = of(device)
        if device == self.device and self.carried:
            self.carried = [self.merged()]

            def lift(into, peaks):
                for key, value in peaks.items():
                    if isinstance(value, dict):
                        lift(into.get(key, {}), value)
                    elif key in into:
                        into[key] = max(into[key], value)
            lift(stats, self.carried[0])
        return stats

    def reset_by_others(self, of, device):
        if device == self.device and self.cuda.is_initialized():
            self.kept = [max(p) for p in zip(self.three(self.raw(device)), self.kept)]
            self.carried = []
        return of(device)


class Recorder:
    """Steps, micro-batches and phases of this process.

    A step begins with the forward of a root module (one that is not called by another), after an optimizer step; its
    forward ends where backward begins, its update where the last optimizer has stepped.
    """

    def __init__(self, torch):
        import time
        import weakref
        self.torch, self.lines, self.clock, self.wall = torch, Lines(), time.perf_counter, time.time
        self.options = options()
        self.over, self.notes, self.weakref = False, set(), weakref
        self.optimizers, self.dormant = weakref.WeakSet(), weakref.WeakSet()
        self.root = self.root_hook = self.pre_hook = self.probe_hook = None
        self.attended, self.mask_hooks = weakref.WeakSet(), []
        self.depth = 0            # of backward
        self.steps = 0            # whole ones
        self.step = None          # the one that runs
        self.phase, self.stepped, self.in_backward, self.engine_steps = "idle", set(), False, False
        self.written, self.pending, self.highest = 0, 0, -1
        self.seen, self.outputs, self.loss = {}, None, None
        self.planned = None

    # ---------------------------------------------------------------- installing
    def install(self):
        torch = self.torch
        self.memory = Memory(torch)
        self.listen()
        of = sys.modules["torch.optim.optimizer"]
        self.optimizer_hooks = [of.register_optimizer_step_post_hook(lambda o, a, k: self.after_optimizer(o))]
        recorder, backward = self, torch.autograd.backward

        def recorded_backward(*args, **kwargs):
            if torch.compiler.is_compiling() or recorder.over:
                return backward(*args, **kwargs)
            recorder.before_backward()
            try:
                return backward(*args, **kwargs)
            finally:
                recorder.after_backward()
        recorded_backward.__doc__ = backward.__doc__
        torch.autograd.backward = recorded_backward

        def around(owner, name, before=None, after=None):
            call = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)

            def recorded(*args, **kwargs):
                token = before(*args, **kwargs) if before else None
                result = call(*args, **kwargs)
                if after:
                    after(token, *args, **kwargs)
                return result
            recorded.__name__, recorded.__doc__ = name, call.__doc__
            recorded.__wrapped__ = call
            setattr(owner, name, recorded)
        self.around = around
        around(torch.optim.Optimizer, "__init__", after=lambda _, o, *a, **k: self.optimizers.add(o))
        around(torch.optim.Optimizer, "zero_grad", after=lambda *_, **k: self.after_zero_grad())
        around(torch.nn.Module, "zero_grad", after=lambda *_, **k: self.after_zero_grad())
        scaler = torch.amp.grad_scaler.GradScaler
        around(scaler, "step", before=lambda *a, **k: len(self.stepped),
               after=lambda n, s, o, *a, **k: self.after_scaler(n, s))
        clip = lambda ps, norm, *a, **k: self.seen.__setitem__("clip_grad", float(norm))
        around(torch.nn.utils, "clip_grad_norm_", before=clip)
        hook, self.error = sys.excepthook, None

        def excepthook(kind, error, trace):
            self.error = f"{kind.__name__}: {error}"
            if isinstance(error, torch.OutOfMemoryError):
                self.lines.write(t="oom", phase=self.phase, step=self.steps + 1, message=str(error))
                if self.planned is None and self.step is not None:
                    self.note("memory ran out in the first step: of the plan, micro-batches per step and clipping are what was seen until then")
                    self.write_plan()
            hook(kind, error, trace)
        sys.excepthook = excepthook
        import atexit
        atexit.register(self.at_exit)

    def listen(self):
        """Waits for the next root module: nothing is called for the modules inside of one."""
        if self.pre_hook is None and not self.over:
            self.pre_hook = self.torch.nn.modules.module.register_module_forward_pre_hook(self.before_module)

    def deafen(self):
        if self.pre_hook is not None:
            self.pre_hook.remove()
            self.pre_hook = None

    def stop(self):
        """No more is measured."""
        self.over = True
        self.deafen()
        for hook in (self.root_hook, self.probe_hook, *self.optimizer_hooks, *self.mask_hooks):
            if hook is not None:
                hook.remove()

    def note(self, text):
        if text not in self.notes and len(self.notes) < 50:
            self.notes.add(text)
            self.lines.write(t="note", text=text)

    # ---------------------------------------------------------------- forward
    def before_module(self, module, args):
        if self.torch.compiler.is_compiling():
            return
        self.enter(module)

    @guarded
    def enter(self, module):
        torch = self.torch
        if self.root is not None and self.root_hook is not None:
            self.root_hook.remove()   # its forward was interrupted
        first = next(module.parameters(), None)
        if first is None:
            return                    # a loss, an activation: no model
        training = torch.is_grad_enabled()
        self.deafen()
        self.root = module
        self.root_hook = module.register_forward_hook(self.leave, with_kwargs=True, always_call=True)
        if not training:
            self.seen["evaluates"] = True
            return
        if self.memory.device is None and first.is_cuda:
            self.memory.device = first.device.index
            self.watch_memory()
        if type(module).__name__ == "DeepSpeedEngine" and not self.engine_steps:
            self.listen_to_engine(type(module))
        if self.phase in ("idle", "update") and self.step is not None and self.is_whole():
            self.end_step()
        self.begin_micro_batch(module)
        self.watch_mask(module)
        if self.probe_hook is None and "autocast" not in self.seen:
            self.probe_hook = torch.nn.modules.module.register_module_forward_pre_hook(self.probe)

    def begin_micro_batch(self, module):
        if self.phase == "forward":
            return                    # another model in the same forward
        now = self.memory.mark()
        if self.step is None:
            self.step = dict(base=now, micro=[], began=self.clock())
            if self.steps == 0:
                self.first_peak = now and now[1]
            if self.steps == 1:
                self.seen["keeps_grads"] = any(p.grad is not None for p in module.parameters())
                self.seen["outputs_live_on"] = self.outputs is not None and self.outputs() is not None
        self.step["micro"].append(dict(base=now, inputs=0, tokens=0))
        self.step["model"] = self.weakref.ref(module)
        self.phase = "forward"

    def watch_mask(self, root):
        """What mask reaches the first attention: whether the batch hides padding is told by that, and no value is read."""
        if root in self.attended:
            return
        self.attended.add(root)
        modules = list(root.modules())
        if any(type(m).__name__ == "OptimizedModule" or getattr(m, "_compiled_call_impl", None) is not None for m in modules):
            return                    # a hook inside would break its graph
        import inspect
        config = next((m.config for m in modules if hasattr(m, "config")), None)
        self.windowed = bool(getattr(config, "sliding_window", None))
        for m in modules:
            takes = list(inspect.signature(m.forward).parameters) if type(m).__name__.endswith("Attention") else ()
            if "attention_mask" in takes:
                at = takes.index("attention_mask")

                def attend(module, args, kwargs):
                    if not self.torch.compiler.is_compiling():
                        self.take_mask(kwargs.get("attention_mask", args[at] if at < len(args) else None))
                self.mask_hooks.append(m.register_forward_pre_hook(attend, with_kwargs=True))
                return

    @guarded
    def take_mask(self, mask):
        if self.phase == "forward" and self.step is not None:
            # One that is expanded over the batch tells no sequence from another; nor does a window's, of a batch of one.
            tells = lambda: mask.dim() != 4 or (mask.stride(0) != 0 if mask.shape[0] > 1 else not self.windowed)
            self.step["micro"][-1]["masked"] = isinstance(mask, self.torch.Tensor) and tells()

    def listen_to_engine(self, engine):
        """DeepSpeed reduces, clips and steps by itself, piece by piece: its own calls are the phases."""
        self.engine_steps = True
        self.around(engine, "backward", before=lambda *a, **k: self.before_backward(), after=lambda *a, **k: self.after_backward())
        self.around(engine, "step", before=lambda e, *a, **k: e.is_gradient_accumulation_boundary(),
                    after=lambda last, *a, **k: self.after_engine(last))

    @guarded
    def after_engine(self, last):
        if last and self.step is not None and self.phase == "update":
            self.ended_update()

    def probe(self, module, args):
        """Inside of the root's forward: what is in force there."""
        torch = self.torch
        if torch.compiler.is_compiling():
            return
        self.probe_hook.remove()
        self.probe_hook = None
        on = torch.is_autocast_enabled("cuda")
        self.seen["autocast"] = str(torch.get_autocast_dtype("cuda")) if on else None

    def leave(self, module, args, kwargs, output):
        self.after_root(module, args, kwargs, output)

    @guarded
    def after_root(self, module, args, kwargs, output):
        self.root_hook.remove()
        self.root = self.root_hook = None
        if self.probe_hook is not None:   # nothing was called inside: it is its own layer
            self.probe_hook.remove()
            self.probe_hook = None
            self.seen.setdefault("autocast", None)
        if self.torch.is_grad_enabled() and self.step is not None and self.phase == "forward":
            micro = self.step["micro"][-1]
            micro["inputs"] += self.input_blocks(args, kwargs)
            if "shape" not in micro:
                micro["shape"], micro["tokens"] = self.shape(args, kwargs)
            try:
                self.outputs = self.weakref.ref(output)
            except TypeError:
                self.outputs = None
            loss = getattr(output, "loss", None)
            self.loss = self.weakref.ref(loss) if isinstance(loss, self.torch.Tensor) else None
        if self.depth == 0:
            self.listen()

    def tensors(self, args, kwargs):
        stack, found = [args, kwargs], {}
        while stack:
            value = stack.pop()
            if isinstance(value, self.torch.Tensor):
                found[id(value)] = value
            elif isinstance(value, dict):
                stack.extend(value.values())
            elif isinstance(value, (list, tuple)) and len(value) < 1000:
                stack.extend(value)
        return found.values()

    def input_blocks(self, args, kwargs):
        """What the batch takes: whole blocks, storages that are shared once."""
        blocks = {}
        for tensor in self.tensors(args, kwargs):
            if tensor.is_cuda and not isinstance(tensor, self.torch.nn.Parameter) and tensor.grad_fn is None:
                storage = tensor.untyped_storage()
                blocks[storage.data_ptr()] = -(-storage.nbytes() // 512) * 512
        return sum(blocks.values())

    def shape(self, args, kwargs):
        """The batch's sizes by input, and its tokens."""
        sizes = {k: list(v.shape) for k, v in kwargs.items() if isinstance(v, self.torch.Tensor)}
        sizes.update({str(i): list(v.shape) for i, v in enumerate(args) if isinstance(v, self.torch.Tensor)})
        ids = next((v for v in self.tensors(args, kwargs) if not v.is_floating_point() and v.dim() == 2), None)
        if "input_ids" in kwargs and isinstance(kwargs["input_ids"], self.torch.Tensor):
            ids = kwargs["input_ids"]
        return sizes, 0 if ids is None else ids.numel()

    # ---------------------------------------------------------------- backward
    @guarded
    def before_backward(self):
        self.depth += 1
        if self.depth > 1:
            return
        self.deafen()                 # checkpoints call modules again
        if self.step is None or self.phase in ("idle", "update", "backward"):
            return
        micro = self.step["micro"][-1]
        micro["forward"] = self.memory.mark()
        if self.outputs is not None and "keeps_outputs" not in self.seen:
            self.seen["keeps_outputs"] = self.outputs() is not None
        self.phase = "backward"

    @guarded
    def after_backward(self):
        self.depth = max(0, self.depth - 1)
        if self.depth:
            return
        if self.step is not None and self.phase == "backward":
            self.step["micro"][-1]["backward"] = self.memory.mark()
            if self.steps == 0:
                self.seen["grads"] = self.gradients()
            self.phase = "update"
            if self.in_backward:
                self.ended_update()
        self.listen()

    # ---------------------------------------------------------------- update
    def gradients(self):
        """Bytes in `.grad` of the parameters where backward has ended. What DeepSpeed keeps in buffers of its own is not there."""
        model = self.step["model"]()
        lists = [group["params"] for o in list(self.optimizers) for group in o.param_groups] + [model.parameters() if model else ()]
        grads = {id(p): p.grad for params in lists for p in params if p.grad is not None}
        return sum(self.bytes_of(g) for g in grads.values() if g.is_cuda)

    def after_optimizer(self, optimizer):
        self.optimizer_stepped(optimizer)
        stop = self.options.get("stop_after")
        if stop and self.phase == "idle" and self.steps + 1 >= stop and self.step is not None and self.is_whole():
            self.end_step()
            self.stopped = True
            self.lines.write(t="note", text=f"stopped after {stop} steps, as --stop-after asks")
            raise SystemExit(0)

    @guarded
    def optimizer_stepped(self, optimizer):
        if self.engine_steps or self.step is None:
            return
        if self.loss is not None:
            self.seen.setdefault("detaches_loss", self.loss() is None)
        key = id(optimizer)
        self.dormant.discard(optimizer)
        self.optimizers.add(optimizer)
        if self.depth:
            self.in_backward = True
            self.stepped.add(key)
            return
        if key in self.stepped:       # the others do not step every time
            for other in list(self.optimizers):
                if id(other) not in self.stepped:
                    self.dormant.add(other)
        self.stepped.add(key)
        self.ended_update()

    def after_scaler(self, before, scaler):
        if not self.over and len(self.stepped) == before and self.step is not None and self.phase == "update":
            self.note("the gradient scaler skipped steps, whose gradients were not finite: they are left out")
            self.step, self.phase, self.stepped = None, "idle", set()

    def ended_update(self):
        self.step["update"] = self.memory.mark()
        self.step["ended"] = self.clock()
        self.phase = "idle"
        if self.is_whole():
            self.take_step()

    def is_whole(self):
        """Every optimizer that takes part has stepped."""
        if self.engine_steps or self.in_backward:
            return bool(self.step.get("update")) or "ended" in self.step
        return bool(self.stepped) and all(id(o) in self.stepped or o in self.dormant for o in self.optimizers)

    @guarded
    def after_zero_grad(self):
        if self.step is not None and self.phase == "idle" and "taken" in self.step and not self.depth:
            now = self.memory.mark()
            if now and "after_zero_grad" not in self.step:
                self.step["after_zero_grad"] = now[0]
                if self.steps < 1000:
                    self.lines.write(t="zero", n=self.steps + 1, after_zero_grad=now[0])
        elif self.phase == "forward" and not self.depth:
            self.seen["zeroed_after_forward"] = True

    def take_step(self):
        """Writes the step that has just ended. From the thousandth on only some, and every new highest."""
        step, n = self.step, self.steps + 1
        if "taken" in step:
            return
        step["taken"] = True
        micro = step["micro"]
        highest = max(micro, key=lambda m: max((m[k][1] for k in ("forward", "backward") if m.get(k)), default=0))
        batch = lambda m: [m.get(k) for k in ("shape", "masked")]
        unlike = batch(highest) != batch(micro[0])
        written = ("base", "inputs", "shape", "masked", "tokens", "forward", "backward")
        marks = [m[k] for m in micro for k in ("forward", "backward") if m.get(k)]
        line = dict(t="step", n=n, at=self.wall(), seconds=step["ended"] - step["began"], base=step["base"],
                    # The first, and the one that peaks highest where its batch is another.
                    micro=[{k: m.get(k) for k in written} for m in micro[:1] + [highest] * unlike],
                    micros=len(micro), varied=any(batch(m) != batch(highest) for m in micro), backward_end=(micro[-1].get("backward") or [None])[0], tokens=sum(m["tokens"] for m in micro), update=step["update"],
                    peaks=[max(mark[i] for mark in marks) for i in (1, 3, 5)] if marks else None)
        if n == 1:
            self.first_step()
        if n <= 2:
            self.write_plan()
        high = max((line["peaks"] or [0])[0], (step["update"] or [0, 0])[1])
        self.pending += 1
        if n <= 1000 or high > self.highest or self.pending >= 10 ** (len(str(n)) - 3):
            line["every"], self.pending = self.pending, 0
            self.lines.write(**line)
        self.highest = max(self.highest, high)

    def end_step(self):
        self.take_step()
        self.steps += 1
        self.step, self.stepped, self.phase = None, set(), "idle"
        if self.options.get("steps") and self.steps >= self.options["steps"] + self.options.get("warmup", 0):
            self.finish("measured as many steps as --steps asks")

    @staticmethod
    def bytes_of(tensor):
        tensor = getattr(tensor, "_local_tensor", tensor)
        return tensor.numel() * tensor.element_size()

    def first_step(self):
        model = self.step["model"]()
        state = {True: {}, False: {}}
        for optimizer in list(self.optimizers):
            stack = list(optimizer.state.values())
            while stack:
                value = stack.pop()
                if isinstance(value, self.torch.Tensor):
                    value = getattr(value, "_local_tensor", value)
                    state[value.is_cuda][value.data_ptr()] = self.bytes_of(value)
                elif isinstance(value, dict):
                    stack.extend(value.values())
                elif isinstance(value, (list, tuple)):
                    stack.extend(value)
        self.lines.write(t="sizes", params=sum(self.bytes_of(p) for p in model.parameters()),
                         optimizer_state=sum(state[True].values()), optimizer_state_host=sum(state[False].values()),
                         grads=self.seen.get("grads"))

    def write_plan(self):
        try:
            from importlib import util
            spec = util.spec_from_file_location("vram_budget_job", os.path.join(os.path.dirname(__file__), "job.py"))
            job = util.module_from_spec(spec)
            spec.loader.exec_module(job)
            from_here = job.read(self)
        except Exception as error:
            from_here = dict(why=[f"reading the job failed: {error!r}"])
        if from_here != self.planned:
            self.planned = from_here
            self.lines.write(t="plan", **from_here)

    # ---------------------------------------------------------------- out of memory, the end
    def watch_memory(self):
        """A snapshot where memory runs out; of the whole history, where it was asked for."""
        torch = self.torch
        if self.options.get("snapshot"):
            torch.cuda.memory._record_memory_history(max_entries=200000)

        def observer(device, alloc, device_alloc, device_free):
            try:
                self.lines.write(t="oom", phase=self.phase, step=self.steps + 1, device=device, tried=alloc,
                                 total=device_alloc, free=device_free)
                self.snapshot("oom")
            except Exception as error:
                self.note(f"no snapshot where memory ran out: {error!r}")
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            attach(observer)

    def snapshot(self, name):
        path = os.path.join(DIRECTORY, f"{name}-{os.uname().nodename}-{os.getpid()}.pickle")
        if not os.path.exists(path):
            self.torch.cuda.memory._dump_snapshot(path)

    def finish(self, why):
        self.note(why)
        if self.options.get("snapshot") and self.memory.device is not None:
            self.snapshot("history")
            self.torch.cuda.memory._record_memory_history(enabled=None)
        self.stop()

    def at_exit(self):
        if os.getpid() != self.lines.pid or self.lines.file is None:
            return
        try:
            if not self.over and self.step is not None and self.step.get("update") and "taken" not in self.step:
                self.take_step()
            if not self.over and self.options.get("snapshot") and self.memory.device is not None:
                self.snapshot("history")
        except Exception as error:
            self.note(f"at the end: {error!r}")
        self.lines.write(t="end", error=self.error, steps=self.steps + (1 if self.step and "taken" in self.step else 0))


try:
    chain()
finally:
    if DIRECTORY:
        sys.meta_path.insert(0, AfterTorch())
