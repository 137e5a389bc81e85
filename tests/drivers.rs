//! `probe`, `watch` and `record` with drivers that are made up: a stand-in for NVIDIA's library, and programs that print what
//! AMD's tools print.
#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use vram_budget::measure::{Gpu, Measurement};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/drivers");

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("drivers").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The command, in a machine whose libraries and programs are those of the folder before all others.
fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vram-budget"));
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    command.args(arguments).current_dir(folder).env("LD_LIBRARY_PATH", folder).env("PATH", path);
    command
}

fn document(output: &Output) -> Measurement {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn nvml(name: &str) -> PathBuf {
    let folder = folder(name);
    let library = folder.join("libnvidia-ml.so.1");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .args([library, Path::new(DATA).join("nvml.c")])
        .status()
        .expect("cc");
    assert!(built.success());
    folder
}

fn figure(gpu: &Gpu, name: &str) -> i64 {
    *gpu.figures.get(name).unwrap_or_else(|| panic!("{name} of {gpu:?}"))
}

#[test]
fn nvidias_driver_is_asked_for_everything_it_knows() {
    let folder = nvml("probe");
    let found = document(&command(&folder, &["probe"]).output().unwrap());
    let environment = found.environment.unwrap();
    assert_eq!((environment.driver.as_deref(), environment.cuda.as_deref()), (Some("580.65.06"), Some("13.0")));
    let gpu = &found.gpus[0];
    assert_eq!((gpu.ecc, gpu.mig, gpu.used_bytes.unwrap().get()), (Some(true), Some(true), 10 << 30));
    for (name, expected) in [
        ("gpu_busy_percent", 93),
        ("memory_busy_percent", 41),
        ("sm_clock_mhz", 1410),
        ("memory_clock_mhz", 1215),
        ("sm_clock_max_mhz", 1410),
        ("ecc_corrected", 3),
        ("ecc_uncorrected", 1),
        ("ecc_corrected_lifetime", 13),
        ("ecc_uncorrected_lifetime", 11),
    ] {
        assert_eq!(figure(gpu, name), expected, "{name}");
    }
    let reasons: Vec<&str> = gpu.throttled.keys().map(String::as_str).collect();
    assert_eq!(reasons, ["hw_thermal_slowdown", "sw_power_cap"], "an idle GPU is not held down");
    assert!(gpu.unavailable.is_empty(), "{:?}", gpu.unavailable);
    let [slice] = gpu.slices.as_slice() else { panic!("{:?}", gpu.slices) };
    assert_eq!((slice.index, slice.name.as_deref()), (1, Some("NVIDIA A100-SXM4-40GB MIG 3g.20gb")));
    assert_eq!((slice.total_bytes.unwrap().get(), figure(slice, "multiprocessors")), (20 << 30, 42));

    // What the second one does not support is absent by name.
    let other = &found.gpus[1];
    assert_eq!((other.ecc, other.mig, other.total_bytes), (None, None, None));
    assert!(other.figures.is_empty());
    for name in ["ecc", "mig", "gpu_busy_percent", "memory_clock_max_mhz", "throttled", "ecc_uncorrected_lifetime"] {
        assert!(other.unavailable[name].contains("not available"), "{:?}", other.unavailable);
    }
    assert!(other.unavailable["total_bytes"].contains("permission"), "{:?}", other.unavailable);
}

#[test]
fn a_gpu_that_fell_off_the_bus_does_not_hide_the_other() {
    let folder = nvml("lost");
    let run = |arguments: &[&str]| command(&folder, arguments).env("NVML_LOST", "1").output().unwrap();
    let found = document(&run(&["probe"]));
    assert!(found.gpus[1].unavailable["name"].contains("off the bus"), "{:?}", found.gpus[1]);
    let looks = lines(&run(&["watch", "--once", "--json"]));
    assert_eq!(looks[0]["processes"][0]["bytes"], 9_u64 << 30);
    assert_eq!((&looks[0]["figures"]["gpu_busy_percent"], &looks[0]["mig"]), (&93.into(), &true.into()));
    assert!(looks[1]["lost"].as_str().unwrap().contains("off the bus"), "{}", looks[1]);
    let table = run(&["watch", "--once"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("93 %  1410 MHz") && table.contains("hw_thermal_slowdown"), "{table}");
    assert!(table.contains("MIG: NVIDIA A100-SXM4-40GB MIG 3g.20gb"), "{table}");
}

/// The training's process is the shell that the command runs.
#[test]
fn a_recorded_run_says_what_its_gpus_did() {
    let folder = nvml("record");
    let lines = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/recordings/plain.jsonl");
    let script = format!("cp {lines} \"$VRAM_BUDGET_RECORD_DIR/process-here-1.jsonl\"; sleep 0.5");
    let pid: Value = std::fs::read_to_string(lines).unwrap().lines().next().unwrap().parse().unwrap();
    let output = command(&folder, &["record", "--out", "out.json", "--", "sh", "-c", &script])
        .env("NVML_LOST", "1")
        .env("NVML_PID", pid["pid"].to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Measurement = serde_json::from_slice(&std::fs::read(folder.join("out.json")).unwrap()).unwrap();
    let gpu = &found.gpus[0];
    for (name, expected) in [
        ("gpu_busy_percent", 93),
        ("gpu_busy_percent_lowest", 93),
        ("sm_clock_mhz_highest", 1410),
        ("ecc_corrected", 3),
        ("ecc_corrected_in_run", 0),
    ] {
        assert_eq!(figure(gpu, name), expected, "{name}");
    }
    assert_eq!(gpu.throttled["sw_power_cap"], 100);
    let text = serde_json::to_value(&found.readings).unwrap();
    let process = text.as_array().unwrap().iter().find(|reading| reading["name"] == "process").unwrap();
    assert_eq!(process["bytes"], 9_u64 << 30);
    assert!(found.run.unwrap().notes.iter().any(|note| note.contains("GPU 1 stopped to answer")));
}

/// A folder without NVIDIA's driver, with these programs.
fn amd(name: &str, programs: &[(&str, &str)]) -> PathBuf {
    let folder = folder(name);
    for library in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
        std::fs::write(folder.join(library), "none").unwrap();
    }
    for (program, script) in programs {
        let path = folder.join(program);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

#[test]
fn amds_tool_is_asked_where_nvidias_driver_is_not_there() {
    let script = format!(
        "case $1 in\n\
         partition) echo '{{\"current_partition\": [{{\"gpu_id\": 0, \"memory\": \"NPS1\", \"accelerator_type\": \"SPX\"}}]}}';;\n\
         metric) echo 'WARNING: User is missing the following required groups: render, video.'; cat {DATA}/amd-smi-metric-rx6600.json;;\n\
         static) cat {DATA}/amd-smi-static-rx6600.json;;\n\
         process) echo '[{{\"gpu\": 0, \"process_list\": [{{\"process_info\": {{\"pid\": 77, \"memory_usage\": {{\"vram_mem\": {{\"value\": 104857600, \"unit\": \"B\"}}}}}}}}]}}]';;\n\
         esac"
    );
    let folder = amd("amd", &[("amd-smi", &script)]);
    let found = document(&command(&folder, &["probe"]).output().unwrap());
    assert_eq!(found.environment.unwrap().driver.as_deref(), Some("amdgpu 7.0.0-3-pve"));
    let gpu = &found.gpus[0];
    assert_eq!((gpu.total_bytes.unwrap().get(), gpu.free_bytes.unwrap().get()), (8176 << 20, 7974 << 20));
    assert_eq!((figure(gpu, "sm_clock_max_mhz"), gpu.mig), (2750, None));
    assert_eq!(gpu.partition.as_deref(), Some("SPX/NPS1"));
    assert!(gpu.unavailable.contains_key("ecc"), "{:?}", gpu.unavailable);
    let looks = lines(&command(&folder, &["watch", "--once", "--json"]).output().unwrap());
    assert_eq!(looks[0]["processes"][0], serde_json::json!({ "pid": 77, "bytes": 104_857_600 }));
    assert_eq!(looks[0]["figures"]["memory_clock_mhz"], 541);
}

#[test]
fn the_older_tool_stands_in_for_one_that_fails() {
    let older = format!("cat {DATA}/rocm-smi-rx7900xt.json");
    let broken = "echo '{\"error\": \"no permission for /dev/kfd\", \"code\": -3}'; exit 3";
    let folder = amd("rocm", &[("amd-smi", broken), ("rocm-smi", &older)]);
    let found = document(&command(&folder, &["probe"]).output().unwrap());
    let gpu = &found.gpus[0];
    assert_eq!((gpu.name.as_deref(), gpu.used_bytes.unwrap().get()), (Some("Radeon RX 7900 XT"), 27_856_896));
    assert!(gpu.unavailable["ecc_corrected"].contains("rocm-smi"));

    // With neither, what was tried is said, each with its reason.
    let folder = amd("none", &[("amd-smi", broken), ("rocm-smi", "echo Traceback; exit 1")]);
    let output = command(&folder, &["probe"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    for line in
        ["libnvidia-ml.so.1", "amd-smi metric --json: no permission for /dev/kfd", "no JSON (exit status: 1) Traceback"]
    {
        assert!(said.contains(line), "{said}");
    }
}

/// The tool is no part of the measured run: one that hangs or fails leaves the run as it is.
#[test]
fn a_tool_that_stops_to_answer_breaks_no_run() {
    let script = format!(
        "[ -e gone ] && exit 9\ncase $1 in metric) cat {DATA}/amd-smi-metric-rx6600.json;; *) touch gone; echo '[]';; esac"
    );
    let folder = amd("gone", &[("amd-smi", &script)]);
    let output =
        command(&folder, &["record", "--out", "out.json", "--", "sh", "-c", "sleep 0.4; exit 5"]).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(folder.join("out.json").exists());
}
