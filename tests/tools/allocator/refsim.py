#!/usr/bin/env python3
"""Reference simulator of the PyTorch CUDA caching allocator: a second implementation, for tests only.

Source: written for the reference material of this project from a specification of the rules, and checked against the
released allocator of nine PyTorch versions (400 random scripts each, no difference from 2.6 on; up to 2.4 only where
PyTorch itself stops at an internal assertion). Copied unchanged but for this text.

Deliberately small and slow: an executable form of the specification, for checking
a faster implementation. Defaults = PyTorch 2.15; the flags at the end of Config turn on
older behaviour (quirks(version) lists them). No GPU, no PyTorch needed.
"""
import bisect
from dataclasses import dataclass, field

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
MIN_BLOCK, SMALL_MAX, SMALL_SEG = 512, MiB, 2 * MiB
LARGE_MIN_EXACT, LARGE_ROUND = 10 * MiB, 2 * MiB
INF = (1 << 64) - 1


class OutOfMemory(Exception):
    pass


def quirks(version):
    """Config flags for a PyTorch version such as "2.6"."""
    v = tuple(int(x) for x in version.split(".")[:2])
    return dict(
        div1_unrounded=v < (2, 4),           # seen in 2.1 and 2.2, gone in 2.4
        gt_overwrites_last=v < (2, 10),
        tie_by_creation=v == (2, 12),        # 2.13 and 2.14 not checked
        pool_blocks_flush=v < (2, 15),       # seen up to 2.12, gone in 2.15
        reject_over_reserve=v >= (2, 15),    # absent up to 2.12
        fraction_rounds=v >= (2, 15),        # absent up to 2.12
        expandable_in_pools=v >= (2, 6),     # absent in 2.4
    )


@dataclass
class Config:
    max_split_size: int = INF            # bytes
    max_non_split_rounding: int = 20 * MiB
    large_segment_size: int = 20 * MiB   # settable from 2.11
    divisions: list = field(default_factory=lambda: [0] * 16)  # index 0 = [1,2) MiB ... 15 = >=32 GiB
    gc_threshold: float = 0.0
    expandable: bool = False
    div1_unrounded: bool = False         # quirk of 2.1/2.2: division 1 leaves the size unrounded
    gt_overwrites_last: bool = False     # quirk before 2.10: '>' also overwrites the last listed interval
    tie_by_creation: bool = False        # quirk of 2.12: equal sizes ordered by block-record creation, not address
    fraction_rounds: bool = True         # 2.15: limit = round(fraction * total); up to 2.12 it truncates
    expandable_in_pools: bool = True     # False up to 2.4: private pools never use expandable segments
    reject_over_reserve: bool = True     # 2.15: a request larger than the address reserve fails before reserving;
                                         # earlier versions reserve an (unused) address range first
    pool_blocks_flush: bool = False      # up to 2.12 an active private pool blocks the flush-and-retry step even
                                         # outside stream capture; False = only a real capture blocks it (2.15)

    @classmethod
    def parse(cls, text, **quirks):
        c = cls(**quirks)
        toks, cur = [], ""
        for ch in text:
            if ch in ",:[]":
                if cur:
                    toks.append(cur); cur = ""
                toks.append(ch)
            elif not ch.isspace():
                cur += ch
        if cur:
            toks.append(cur)
        i = 0
        while i < len(toks):
            key = toks[i]; i += 2
            if key == "roundup_power2_divisions" and toks[i] == "[":
                i += 1; first = True; last = 0
                while toks[i] != "]":
                    k, val = toks[i], int(toks[i + 2]); i += 3
                    if k == ">":
                        start = last if (c.gt_overwrites_last or first) else last + 1
                        for j in range(start, 16):
                            c.divisions[j] = val
                    else:
                        idx = min(int(k).bit_length() - 1, 15)
                        if first:
                            for j in range(idx):
                                c.divisions[j] = val
                            first = False
                        c.divisions[idx] = val; last = idx
                    if toks[i] == ",":
                        i += 1
                i += 1
            else:
                v = toks[i]; i += 1
                if key == "roundup_power2_divisions":
                    c.divisions = [int(v)] * 16
                elif key == "max_split_size_mb":
                    c.max_split_size = int(v) * MiB
                elif key == "max_non_split_rounding_mb":
                    c.max_non_split_rounding = int(v) * MiB
                elif key == "large_segment_size_mb":
                    c.large_segment_size = int(v) * MiB
                elif key == "garbage_collection_threshold":
                    c.gc_threshold = float(v)
                elif key == "expandable_segments":
                    c.expandable = v == "True"
            if i < len(toks) and toks[i] == ",":
                i += 1
        return c

    def round(self, n):
        if n < MIN_BLOCK:
            return MIN_BLOCK
        d = self.divisions[min(max(n.bit_length() - 1 - 20, 0), 15)]
        lowest = 0 if self.div1_unrounded else 1
        if d > lowest and n > MIN_BLOCK * d:
            if n & (n - 1) == 0 or d == 1:
                return n
            step = (1 << (n.bit_length() - 1)) >> (d.bit_length() - 1)
            return -(-n // step) * step
        return -(-n // MIN_BLOCK) * MIN_BLOCK

    def segment_size(self, rounded):
        if rounded <= SMALL_MAX:
            return SMALL_SEG
        if rounded < LARGE_MIN_EXACT:
            return self.large_segment_size
        return -(-rounded // LARGE_ROUND) * LARGE_ROUND


class Block:
    __slots__ = ("stream", "size", "requested", "pool", "addr", "allocated", "mapped",
                 "prev", "next", "events", "uses", "gc_base", "vseg", "serial")
    made = 0


    def __init__(self, stream, size, pool, addr, vseg=None):
        self.stream, self.size, self.pool, self.addr, self.vseg = stream, size, pool, addr, vseg
        self.requested = 0; self.allocated = False; self.mapped = True
        self.prev = self.next = None; self.events = 0; self.uses = set(); self.gc_base = 0
        Block.made += 1; self.serial = Block.made

    def is_split(self):
        return self.prev is not None or self.next is not None

    def idle(self):
        return not self.allocated and self.events == 0 and not self.uses

    def key(self):
        return (self.stream, self.size, self.serial if self.pool.by_serial else self.addr)


class Pool:
    def __init__(self, small, owner, by_serial=False):
        self.small, self.owner, self.by_serial = small, owner, by_serial
        self.free, self.unmapped, self.searches = [], [], 0

    def put(self, b):
        b.gc_base = self.searches
        bisect.insort(self.free, b, key=Block.key)

    def take(self, b):
        self.free.remove(b)


class VirtualSegment:
    def __init__(self, base, page, pages, stream):
        self.base, self.page, self.pages, self.stream = base, page, pages, stream


class Device:
    """Physical memory and two monotonic address spaces."""
    def __init__(self, total, other=0):
        self.total, self.used = total, other
        self.next_addr, self.next_va = 0x7F0000000000, 0x600000000000

    def malloc(self, n):
        if self.used + n > self.total:
            return None
        a = self.next_addr; self.next_addr += n; self.used += n
        return a

    def reserve_va(self, n):
        a = self.next_va; self.next_va += -(-n // GiB) * GiB
        return a


class Allocator:
    def __init__(self, config=None, total=80 * GiB, other=0):
        self.cfg = config or Config()
        self.dev = Device(total, other)
        self.pools = {}
        self.limit = None
        self.active = set()
        self.pending = []            # [block, stream] in event order
        self.events_done = True
        self.capture = []            # ids of private pools being allocated to, last wins
        self.use_count, self.freeable, self.pool_segments = {}, [], {}
        self.reserved = self.allocated = self.active_bytes = self.requested = 0
        self.inactive_split = 0
        self.retries = self.ooms = 0
        self.last_oom = None
        self._pool(0, True); self._pool(0, False)

    # ---- pools
    def _pool(self, owner, small):
        return self.pools.setdefault((owner, small), Pool(small, owner, self.cfg.tie_by_creation))

    def begin_pool(self, pid):
        self.use_count[pid] = self.use_count.get(pid, 0) + 1
        self.pool_segments.setdefault(pid, 0)
        self.capture.append(pid)

    def end_pool(self, pid):
        self.capture.remove(pid)

    def release_pool(self, pid):
        self.use_count[pid] -= 1
        if self.use_count[pid] == 0:
            self.freeable.append(pid)

    def set_fraction(self, f):
        self.limit = int(f * self.dev.total + (0.5 if self.cfg.fraction_rounds else 0)) if f < 1 else None

    # ---- allocation
    def malloc(self, nbytes, stream=0):
        if nbytes == 0:
            return None
        if not self._blocked() and self.events_done:
            self._drain_events()
        size = self.cfg.round(nbytes)
        pool = self._pool(self.capture[-1] if self.capture else 0, size <= SMALL_MAX)
        seg = self.cfg.segment_size(size)
        b = self._search(pool, size, stream)
        if b is None:
            if self.limit is not None and self.cfg.gc_threshold > 0:
                self._garbage_collect()
            b = self._grow(pool, size, seg, stream)
            if b is None and self._release_oversize(pool, size, stream):
                b = self._grow(pool, size, seg, stream)
            if b is None and not self._blocked():
                self._release_all()
                self.retries += 1
                b = self._grow(pool, size, seg, stream)
            if b is None:
                self.ooms += 1
                self.last_oom = dict(tried=seg, free=self.dev.total - self.dev.used,
                                     allocated=self.allocated, reserved=self.reserved)
                raise OutOfMemory(self.last_oom)
        return self._hand_out(b, size, nbytes)

    def _search(self, pool, size, stream):
        cfg = self.cfg
        if self.limit is not None and cfg.gc_threshold > 0:
            pool.searches += 1
        fl = pool.free
        i = bisect.bisect_left(fl, (stream, size, 0), key=Block.key)
        if i == len(fl) or fl[i].stream != stream:
            return None
        if fl[i].vseg:
            if cfg.expandable:
                def reach(b):
                    return b.size + (b.next.size if b.next and not b.next.mapped else 0)
                while (fl[i].vseg and i + 1 < len(fl) and fl[i + 1].stream == stream
                       and reach(fl[i + 1]) < reach(fl[i])):
                    i += 1
            else:
                i += 1
                while i < len(fl) and fl[i].vseg and fl[i].stream == stream:
                    i += 1
                if i == len(fl) or fl[i].stream != stream:
                    return None
        b = fl[i]
        if size < cfg.max_split_size <= b.size:
            return None
        if size >= cfg.max_split_size and b.size >= size + cfg.max_non_split_rounding:
            return None
        del fl[i]
        return b

    def _grow(self, pool, size, seg, stream):
        if self.limit is not None and self.reserved + seg > self.limit:
            return None
        if self.cfg.expandable and (self.cfg.expandable_in_pools or not pool.owner):
            b = self._grow_expandable(pool, size, stream)
            if b is not None and pool.owner:
                self.pool_segments[pool.owner] += 1
            return b
        addr = self.dev.malloc(seg)
        if addr is None:
            return None
        if pool.owner:
            self.pool_segments[pool.owner] += 1
        self.reserved += seg
        return Block(stream, seg, pool, addr)

    def _hand_out(self, b, size, nbytes):
        left = b.size - size
        if b.pool.small or self.cfg.expandable:
            split = left >= MIN_BLOCK
        else:
            split = size < self.cfg.max_split_size and left > SMALL_MAX
        was_split, classic = b.is_split(), b.vseg is None
        if split:
            rest = b
            b = Block(rest.stream, size, rest.pool, rest.addr, rest.vseg)
            b.prev, b.next = rest.prev, rest
            if b.prev:
                b.prev.next = b
            rest.prev = b; rest.addr += size; rest.size -= size
            rest.pool.put(rest)
            if classic:
                self.inactive_split += -size if was_split else rest.size
        elif was_split and classic:
            self.inactive_split -= b.size
        b.allocated, b.requested = True, nbytes
        self.active.add(b)
        self.allocated += b.size; self.active_bytes += b.size; self.requested += nbytes
        return b

    # ---- free
    def free(self, b):
        b.allocated = False
        self.allocated -= b.size
        if b.uses:
            streams, b.uses = b.uses, set()
            for s in sorted(streams):
                b.events += 1; self.pending.append([b, s])
        else:
            self._recycle(b)

    def record_stream(self, b, stream):
        if stream != b.stream:
            b.uses.add(stream)

    def _drain_events(self):
        done, self.pending = self.pending, []
        for b, _ in done:
            b.events -= 1
            if b.events == 0:
                self._recycle(b)

    def _recycle(self, b):
        size, req, delta = b.size, b.requested, 0
        for n in (b.prev, b.next):
            delta -= self._merge(b, n)
        self.active.discard(b)
        b.pool.put(b)
        if b.is_split():
            delta += b.size
        if b.vseg is None:
            self.inactive_split += delta
        self.active_bytes -= size; self.requested -= req

    def _merge(self, dst, src):
        if src is None or not src.idle() or src.mapped != dst.mapped:
            return 0
        if dst.prev is src:
            dst.addr, dst.prev = src.addr, src.prev
            if dst.prev:
                dst.prev.next = dst
        else:
            dst.next = src.next
            if dst.next:
                dst.next.prev = dst
        dst.size += src.size
        (src.pool.free if src.mapped else src.pool.unmapped).remove(src)
        return src.size

    # ---- giving memory back
    def empty_cache(self):
        self._release_all()

    def _blocked(self):
        return bool(self.capture) and self.cfg.pool_blocks_flush

    def _release_all(self):
        if not self._blocked():
            self._drain_events()
            self._release_pool_blocks(self._pool(0, False))
            self._release_pool_blocks(self._pool(0, True))
        for pid in list(self.freeable):
            self._release_pool_blocks(self._pool(pid, True))
            self._release_pool_blocks(self._pool(pid, False))
            if self.pool_segments[pid] == 0:
                self.freeable.remove(pid)

    def _release_pool_blocks(self, pool):
        virt = [b for b in pool.free if b.vseg]
        for b in [b for b in pool.free if not b.vseg and not b.is_split()]:
            self._release_segment(b)
        for b in virt:
            self._unmap(b)
            if not b.is_split() and not b.mapped:
                pool.unmapped.remove(b)

    def _release_segment(self, b):
        b.pool.take(b)
        self.dev.used -= b.size; self.reserved -= b.size
        if b.pool.owner:
            self.pool_segments[b.pool.owner] -= 1

    def _release_oversize(self, pool, size, stream):
        ms = self.cfg.max_split_size
        if ms == INF:
            return False
        want = max(size, ms)
        fl = pool.free
        i = bisect.bisect_left(fl, (stream, want, 0), key=Block.key)
        if i < len(fl) and fl[i].stream == stream and not fl[i].vseg:
            self._release_segment(fl[i])
            return True
        i -= 1
        got = 0
        while i >= 0 and got < want and fl[i].size >= ms and fl[i].stream == stream:
            b = fl[i]; i -= 1
            if not b.vseg:
                got += b.size
                self._release_segment(b)
        return got >= want

    def _garbage_collect(self):
        threshold = int(self.cfg.gc_threshold * self.limit)
        if self.reserved <= threshold:
            return
        target, got = self.reserved - threshold, 0
        pool = self._pool(0, False)
        whole = [b for b in pool.free if not b.is_split()]
        age = lambda b: pool.searches - b.gc_base
        total, count, progress = sum(map(age, whole)), len(whole), True
        while got < target and progress and count > 0:
            cut, progress = total / count, False
            for b in list(pool.free):
                if not b.is_split() and not b.vseg and age(b) >= cut:
                    progress = True
                    got += b.size; total -= age(b); count -= 1
                    self._release_segment(b)

    # ---- expandable segments
    def _grow_expandable(self, pool, size, stream):
        c = self._find_room(pool, size, stream)
        if c is None:
            return None
        if not c.mapped:
            if not self._map(c, min(c.size, size)):
                return None
        while c.size < size:
            n = c.next
            if not self._map(n, min(size - c.size, n.size)):
                return None
            c = n
        pool.take(c)
        return c

    def _find_room(self, pool, size, stream):
        for u in sorted((b for b in pool.unmapped if b.stream == stream), key=lambda b: b.addr):
            c = u.prev if u.prev and u.prev.idle() else u
            have, w = 0, c
            while have < size and w and w.idle():
                have += w.size; w = w.next
            if have >= size:
                return c
        page = SMALL_SEG if pool.small else self.cfg.large_segment_size
        pages = -(-(self.dev.total + self.dev.total // 8) // page)
        if self.cfg.reject_over_reserve and size > page * pages:
            return None
        v = VirtualSegment(self.dev.reserve_va(page * pages), page, pages, stream)
        b = Block(stream, page * pages, pool, v.base, v)
        b.mapped = False
        pool.unmapped.append(b)
        return b

    def _map(self, b, size):
        page = b.vseg.page
        n = -(-size // page) * page
        if self.dev.used + n > self.dev.total:
            return False
        self.dev.used += n; self.reserved += n
        b.pool.unmapped.remove(b)
        b.mapped = True
        if n < b.size:
            rest = Block(b.stream, b.size - n, b.pool, b.addr + n, b.vseg)
            rest.mapped = False
            rest.prev, rest.next = b, b.next
            if rest.next:
                rest.next.prev = rest
            b.next = rest; b.size = n
            b.pool.unmapped.append(rest)
        self._merge(b, b.prev); self._merge(b, b.next)
        b.pool.put(b)
        return True

    def _unmap(self, b):
        page, base = b.vseg.page, b.vseg.base
        lo = -(-(b.addr - base) // page) * page + base
        hi = (b.addr + b.size - base) // page * page + base
        if lo >= hi:
            return
        b.pool.take(b)
        for addr, n, before in ((b.addr, lo - b.addr, True), (hi, b.addr + b.size - hi, False)):
            if n == 0:
                continue
            k = Block(b.stream, n, b.pool, addr, b.vseg)
            if before:
                k.prev, k.next = b.prev, b
                if k.prev:
                    k.prev.next = k
                b.prev = k
            else:
                k.prev, k.next = b, b.next
                if k.next:
                    k.next.prev = k
                b.next = k
            b.pool.put(k)
        b.addr, b.size, b.mapped = lo, hi - lo, False
        self.dev.used -= hi - lo; self.reserved -= hi - lo
        if b.pool.owner:
            self.pool_segments[b.pool.owner] -= 1
        self._merge(b, b.prev); self._merge(b, b.next)
        b.pool.unmapped.append(b)

    # ---- reporting
    def segments(self):
        heads = [b for p in self.pools.values() for b in p.free] + list(self.active)
        out = []
        for h in heads:
            if h.prev is not None and h.prev.mapped:
                continue
            blocks, b = [], h
            while b is not None and b.mapped:
                if b.allocated:
                    blocks.append(["A", b.size, b.requested])
                elif b.events or b.uses:
                    blocks.append(["P", b.size])
                else:
                    blocks.append(["F", b.size])
                b = b.next
            out.append((h.addr, dict(pool_kind="small" if h.pool.small else "large", stream=h.stream,
                                     expandable=h.vseg is not None, private_pool=h.pool.owner, blocks=blocks)))
        out.sort(key=lambda t: t[0])
        return [s for _, s in out]

    def stats(self):
        return dict(alloc=self.allocated, req=self.requested, active=self.active_bytes,
                    resv=self.reserved, inact=self.inactive_split, retries=self.retries, ooms=self.ooms)
