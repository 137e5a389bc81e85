//! Each row of the articles' troubleshooting, from the texts that a person has to the remedy.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::fmt::Write;

use vram_budget::measure::{Imported, Measurement, Options, Unit, understand};
use vram_budget::reconcile::{Symptom, diagnose};
use vram_budget::text::Locale;

fn read(text: &str) -> Vec<Measurement> {
    let options = Options { unit: Some(Unit::B), ..Options::default() };
    let found = understand(text.as_bytes(), &options).unwrap_or_else(|error| panic!("{error}: {text}"));
    let measurement = |one| match one {
        Imported::Measurement { measurement, .. } => *measurement,
        other => panic!("{other:?}"),
    };
    found.into_iter().map(measurement).collect()
}

const TRACEBACK: &str = r#"Traceback (most recent call last):
  File "train.py", line 88, in <module>
    main()
"#;

fn out_of_memory(frames: &str) -> String {
    format!(
        "{TRACEBACK}{frames}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 250.00 MiB. GPU 0 has a total \
         capacity of 23.64 GiB of which 120.00 MiB is free. Including non-PyTorch memory, this process has 23.50 GiB memory \
         in use. Of the allocated memory 22.60 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but \
         unallocated. If reserved but unallocated memory is large try setting \
         PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management\n"
    )
}

/// A log of bytes by step.
fn log(steps: impl Iterator<Item = (u64, u64, u64)>) -> String {
    let mut text = "step,allocated_bytes,reserved_bytes\n".to_owned();
    for (step, allocated, reserved) in steps {
        writeln!(text, "{step},{allocated},{reserved}").unwrap();
    }
    text
}

const GB: u64 = 1_000_000_000;

fn scenarios() -> Vec<(&'static str, Vec<String>)> {
    let step = r#"  File "train.py", line 61, in main
    optimizer.step()
  File "/venv/lib/python3.12/site-packages/torch/optim/adamw.py", line 220, in step
    adamw(
"#;
    let backward = r#"  File "train.py", line 60, in main
    loss.backward()
  File "/venv/lib/python3.12/site-packages/torch/_tensor.py", line 626, in backward
    torch.autograd.backward(
"#;
    let rank = |rank: u32, gib: &str| {
        format!(
            "[rank{rank}]: CUDA out of memory. Tried to allocate 2.00 MiB (GPU {rank}; 23.64 GiB total capacity; {gib} GiB \
             already allocated; 1.00 MiB free; 23.00 GiB reserved in total by PyTorch)\n"
        )
    };
    let smi = "Mon Nov 24 10:11:12 2025
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.127.05             Driver Version: 550.127.05     CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA GeForce RTX 4090        Off |   00000000:01:00.0 Off |                  Off |
| 30%   45C    P2            310W /  450W |   21910MiB /  24564MiB |     98%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
";
    let process = |pid: u32, mib: u32| {
        format!("|    0   N/A  N/A   {pid:>8}      C   python                                     {mib:>6}MiB |\n")
    };
    let end = "+-----------------------------------------------------------------------------------------+\n";
    vec![
        (
            "nvidia-smi shows more than memory_allocated",
            vec![
                format!("{smi}{}{end}", process(1200, 21_900)),
                r#"{"allocated_bytes.all.current": 20900000000, "reserved_bytes.all.current": 22000000000}"#.into(),
            ],
        ),
        (
            "backward peaks far above forward",
            vec![
                r#"{"base": 16060523520, "forward_delta": 14281172480, "backward_delta": 1779383296, "step_delta": 4026531840, "peak": 50302646784}"#.into(),
            ],
        ),
        ("out of memory in optimizer.step()", vec![out_of_memory(step)]),
        ("ranks that differ", vec![rank(0, "20.00") + &rank(1, "22.50")]),
        (
            "fragmentation grows",
            vec![log((0..60).map(|n| (n, 10 * GB, 10 * GB + GB / 2 + n * GB / 15)))],
        ),
        ("a leak", vec![log((0..200).map(|n| (n, 10 * GB + n * 3_000_000 + (n * 37) % 5 * 1_000_000, 20 * GB)))]),
        ("another process", vec![format!("{smi}{}{}{end}", process(1200, 14_000), process(1300, 7_600))]),
        (
            "out of memory at the start",
            vec![log((0..2).map(|n| (n, 20 * GB, 22 * GB))) + "\n", out_of_memory(backward)],
        ),
        (
            "out of memory after hours",
            vec![log((0..4000).map(|n| (n, 18 * GB + n * 400_000, 21 * GB + n * 400_000))) + "\n", out_of_memory(backward)],
        ),
        (
            "a limit",
            vec![
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of \
                 79.11 GiB of which 50.00 GiB is free. 23.73 GiB allowed; Of the allocated memory 23.00 GiB is allocated by \
                 PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large \
                 try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for \
                 Memory Management\n".into(),
            ],
        ),
        (
            "host memory",
            vec![
                "[12345.678] Out of memory: Killed process 4321 (python) total-vm:301234567kB, anon-rss:260000000kB\n".into(),
            ],
        ),
        (
            "host memory, as PyTorch says it",
            vec![
                "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you \
                 tried to allocate 54760833024 bytes. Error code 12 (Cannot allocate memory)\n".into(),
            ],
        ),
        (
            "autocast missing in recomputation",
            vec![
                "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors \
                 have different metadata than during the forward pass.\ntensor at position 4:\nsaved metadata: {'shape': \
                 torch.Size([2, 512, 768]), 'dtype': torch.bfloat16, 'device': device(type='cuda', index=0)}\nrecomputed \
                 metadata: {'shape': torch.Size([2, 512, 768]), 'dtype': torch.float32, 'device': device(type='cuda', \
                 index=0)}\n".into(),
            ],
        ),
        (
            "another recomputation",
            vec![
                "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: A different number of tensors was saved \
                 during the original forward and recomputation.\nNumber of tensors saved during forward: 14\nNumber of tensors \
                 saved during recomputation: 12.\n".into(),
            ],
        ),
    ]
}

/// Evidence, a way to check it and a remedy, for every row.
#[test]
fn every_symptom_leads_to_its_remedy() {
    let words = Locale::En.reconcile();
    let mut said = String::new();
    for (name, texts) in scenarios() {
        let measurements: Vec<Measurement> = texts.iter().flat_map(|text| read(text)).collect();
        writeln!(said, "{name}").unwrap();
        for symptom in diagnose(&measurements) {
            writeln!(said, "  {}", words.symptom(&symptom)).unwrap();
            writeln!(said, "    check: {}", words.check(&symptom)).unwrap();
            writeln!(said, "    remedy: {}", words.remedy(&symptom)).unwrap();
        }
    }
    insta::assert_snapshot!(said);
}

/// The symptom of each row is what its texts were written to show.
#[test]
fn no_row_is_mistaken_for_another() {
    let is: [fn(&Symptom) -> bool; 14] = [
        |s| matches!(s, Symptom::Gap { .. }),
        |s| matches!(s, Symptom::BackwardPeak { .. }),
        |s| matches!(s, Symptom::OutInStep),
        |s| matches!(s, Symptom::Uneven { .. }),
        |s| matches!(s, Symptom::FragmentationGrows { .. }),
        |s| matches!(s, Symptom::Leak(_)),
        |s| matches!(s, Symptom::OtherProcesses { .. }),
        |s| matches!(s, Symptom::OutAtStart { .. }),
        |s| matches!(s, Symptom::OutAfterHours { .. }),
        |s| matches!(s, Symptom::Limit { .. }),
        |s| matches!(s, Symptom::HostOutOfMemory),
        |s| matches!(s, Symptom::HostOutOfMemory),
        |s| matches!(s, Symptom::Recomputation { autocast: true, .. }),
        |s| matches!(s, Symptom::Recomputation { autocast: false, .. }),
    ];
    for ((name, texts), is) in scenarios().into_iter().zip(is) {
        let measurements: Vec<Measurement> = texts.iter().flat_map(|text| read(text)).collect();
        let found = diagnose(&measurements);
        assert!(found.first().is_some_and(is), "{name}: {found:?}");
    }
}
