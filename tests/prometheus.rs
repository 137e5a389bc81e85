//! A real Prometheus server (Debian's `prometheus`), which scrapes a small exporter: its metrics are those of NVIDIA's
//! dcgm-exporter, names and labels as its documentation shows them. Run by `make test-torch`. TLS and credentials, which a
//! proxy before such a server asks for, are tested without one.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
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

const CERTIFICATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/prometheus/server.pem");
const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/prometheus/server.key");
const ANSWER: &str = r#"{"status":"success","data":{"resultType":"matrix","result":[
    {"metric":{"__name__":"DCGM_FI_DEV_FB_USED","gpu":"3","Hostname":"n7"},"values":[[1700000000,"40000"]]}]}}"#;

/// A server that speaks TLS, closes without a word, and sends on what it was asked. Its address.
fn tls_server(heard: mpsc::Sender<String>) -> String {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let certificates = CertificateDer::pem_file_iter(CERTIFICATE).unwrap().map(Result::unwrap).collect();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates, PrivateKeyDer::from_pem_file(KEY).unwrap())
        .unwrap();
    let config = Arc::new(config);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = rustls::StreamOwned::new(rustls::ServerConnection::new(config.clone()).unwrap(), stream);
            let mut asked = Vec::new();
            let mut piece = [0; 4096];
            while !asked.ends_with(b"\r\n\r\n") {
                match stream.read(&mut piece) {
                    Ok(count) if count > 0 => asked.extend(&piece[..count]),
                    _ => break,
                }
            }
            let _ = write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{ANSWER}", ANSWER.len());
            let _ = stream.flush();
            let _ = heard.send(String::from_utf8_lossy(&asked).into_owned());
        }
    });
    format!("https://localhost:{port}/prom")
}

fn asking(url: &str, set: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vram-budget"));
    command.args(["import", "--prometheus", url, "--query-range", "DCGM_FI_DEV_FB_USED"]);
    for name in ["TOKEN", "USER", "PASSWORD"] {
        command.env_remove(format!("VRAM_BUDGET_PROMETHEUS_{name}"));
    }
    let output = command.env_remove("SSL_CERT_DIR").envs(set.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_server_is_asked_over_tls_if_the_machine_knows_its_certificate() {
    let (send, heard) = mpsc::channel();
    let url = tls_server(send);
    let known = ("SSL_CERT_FILE", CERTIFICATE);
    let (code, out, err) = asking(&url, &[known, ("VRAM_BUDGET_PROMETHEUS_TOKEN", "abc")]);
    assert_eq!(code, Some(0), "{err}");
    let found: Measurement = serde_json::from_str(&out).unwrap();
    assert_eq!(found.bytes(ReadingName::Reported(Reported::Used)), Some(40_000 << 20));
    let asked = heard.recv().unwrap();
    assert!(asked.starts_with("GET /prom/api/v1/query_range?query=DCGM_FI_DEV_FB_USED&"), "{asked}");
    assert!(asked.contains("\r\nAuthorization: Bearer abc\r\n"), "{asked}");

    let who = [known, ("VRAM_BUDGET_PROMETHEUS_USER", "Aladdin"), ("VRAM_BUDGET_PROMETHEUS_PASSWORD", "open sesame")];
    assert_eq!(asking(&url, &who).0, Some(0));
    assert!(heard.recv().unwrap().contains("Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n"));
    assert_eq!(asking(&url, &[known]).0, Some(0));
    assert!(!heard.recv().unwrap().contains("Authorization"));

    // The machine's own certificates do not vouch for it, nor for another name: nothing is sent.
    let other = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-certificates.pem");
    std::fs::write(&other, "").unwrap();
    for (url, certificates) in
        [(url.clone(), other.to_str().unwrap()), (url.replace("localhost", "127.0.0.2"), CERTIFICATE)]
    {
        let (code, out, err) =
            asking(&url, &[("SSL_CERT_FILE", certificates), ("VRAM_BUDGET_PROMETHEUS_TOKEN", "abc")]);
        assert!(code != Some(0) && out.is_empty() && err.contains("certificate"), "{url}: {code:?} {err}");
        let sent = heard.recv_timeout(Duration::from_millis(300)).unwrap_or_default();
        assert!(sent.is_empty(), "{sent}");
    }
}

#[test]
fn credentials_never_leave_the_machine_in_plain() {
    let secret = ("VRAM_BUDGET_PROMETHEUS_TOKEN", "abc");
    let (code, _, err) = asking("http://prometheus.example:9090", &[secret]);
    assert!(code == Some(4) && err.contains("https"), "{code:?} {err}");
    assert!(!err.contains("abc"), "{err}");
    let (code, _, err) = asking("https://me:secret@prometheus.example", &[]);
    assert!(code == Some(4) && err.contains("VRAM_BUDGET_PROMETHEUS_USER"), "{code:?} {err}");
}
