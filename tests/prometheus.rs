//! A real Prometheus server (Debian's `prometheus`), which scrapes a small exporter: its metrics are those of NVIDIA's
//! dcgm-exporter, names and labels as its documentation shows them. Run by `make test-torch`.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use vram_budget::measure::{Measurement, ReadingName, Reported};

const METRICS: &str = include_str!("data/prometheus/dcgm.prom");

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn import(url: &str, query: &str) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vram-budget"))
        .args(["import", "--prometheus", url, "--query-range", query, "--last", "60", "--every", "1"])
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
#[ignore = "needs the prometheus server: make test-torch"]
fn a_fleet_is_read_from_a_prometheus_server() {
    let exporter = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = exporter.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in exporter.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = write!(stream, "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n{METRICS}");
        }
    });
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("prometheus");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let config = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: dcgm, static_configs: [{{targets: ['{target}']}}]}}]\n"
    );
    std::fs::write(folder.join("prometheus.yml"), config).unwrap();
    let port = free_port();
    let mut server = Command::new("prometheus")
        .args([
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            &format!("--web.listen-address=127.0.0.1:{port}"),
        ])
        .current_dir(&folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("apt install prometheus");
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the server does not start");
        std::thread::sleep(Duration::from_millis(200));
    }
    let url = format!("http://127.0.0.1:{port}");
    let query = "DCGM_FI_DEV_FB_USED{job=\"dcgm\"}";
    let (code, out, err) = loop {
        let answer = import(&url, query);
        if answer.0 == Some(0) || begun.elapsed() > Duration::from_secs(90) {
            break answer;
        }
        std::thread::sleep(Duration::from_millis(500));
    };
    let wrong = import(&url, "sum(");
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(code, Some(0), "{err}");
    let found: Vec<Measurement> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of =
        |at: usize| (found[at].id.as_deref().unwrap(), found[at].bytes(ReadingName::Reported(Reported::Used)).unwrap());
    // The pod's name is what a job is called; without one the scraper's.
    assert_eq!(of(0), ("node7, GPU 0, job llama-0", 40_961 << 20));
    assert_eq!(of(1), ("node7, GPU 1, job dcgm", 7 << 20));
    assert_eq!(found[0].gpus[0].name.as_deref(), Some("NVIDIA A100-SXM4-80GB"));
    assert!((wrong.0, wrong.2.contains("parse error")) == (Some(4), true), "{wrong:?}");
}
