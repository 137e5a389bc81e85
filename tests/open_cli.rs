//! `vram-budget open`, `serve`, `completions`, `man`, as a shell calls them.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PAGE: &str = "<body><script type=\"application/octet-stream\" id=\"wasm\">AAAA</script></body>";
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/measurements/version-1.json");

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("open").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("page.html"), PAGE).unwrap();
    folder
}

fn run(folder: &Path, args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vram-budget")).args(args).current_dir(folder).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_measurement_is_put_into_the_page() {
    let folder = folder("file");
    let done = run(&folder, &["open", "--no-open", "--page", "page.html", "--out", "out.html", DOCUMENT]);
    assert_eq!(done, (Some(0), "out.html\n".into()));
    let html = std::fs::read_to_string(folder.join("out.html")).unwrap();
    let (block, rest) = html.split_once("id=\"measurement\">").unwrap().1.split_once("</script>").unwrap();
    assert!(block.contains("\"version\":3") && rest.contains("id=\"wasm\""), "{html}");
    assert_eq!(run(&folder, &["open", "--no-open", "--page", DOCUMENT, DOCUMENT]).0, Some(1), "that is no page");
}

#[test]
fn the_newest_measurement_is_served_to_whoever_has_the_address() {
    let folder = folder("serve");
    std::fs::copy(DOCUMENT, folder.join("vram-train-1.json")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_vram-budget"))
        .args(["serve", "--page", "page.html"])
        .current_dir(&folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut address = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let rest = address.trim().strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    assert!(path.len() > 32, "{path}");
    let ask = |host_header: &str, path: &str| {
        let mut stream = TcpStream::connect(host).unwrap();
        write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host_header}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = ask(host, path);
    let (wrong_path, wrong_host) = (ask(host, "x/"), ask("evil.example", path));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("id=\"measurement\">{\"format\""), "{answer}");
    assert!(wrong_path.starts_with("HTTP/1.1 404 "), "{wrong_path}");
    assert!(wrong_host.starts_with("HTTP/1.1 421 "), "{wrong_host}");
}

#[test]
fn shells_and_man_are_served() {
    let folder = folder("shell");
    for shell in ["bash", "zsh", "fish"] {
        let (code, script) = run(&folder, &["completions", shell]);
        assert!(code == Some(0) && script.contains("tensorboard"), "{shell}");
    }
    let (code, page) = run(&folder, &["man"]);
    assert!(code == Some(0) && page.contains(".TH vram-budget") && page.contains("query\\-range"), "{page}");
}
