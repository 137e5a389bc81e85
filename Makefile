# `make` lists the targets. What they need and do not find, they install (scripts/tools.sh).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
export PATH := $(CURDIR)/.tools/bin:$(CURDIR)/scripts/node_modules/.bin:$(HOME)/.cargo/bin:$(PATH)
PORT ?= 8080
# This trunk takes NO_COLOR=1 for a wrong flag. Offline: a tool it does not find on PATH is an error, not a download.
TRUNK := env -u NO_COLOR trunk
WEB := --target wasm32-unknown-unknown --no-default-features --features web

.PHONY: help serve dev test dist fmt lint test-rust test-torch test-page size speed accuracy screenshots release clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

serve: dist ## build the page, serve it and print its address
	node scripts/serve.mjs dist $(PORT)

dev: ## serve a debug build that follows the sources
	scripts/tools.sh web
	$(TRUNK) serve --port $(PORT)

test: fmt lint test-rust speed dist size test-page ## run every test

fmt: ## check the formatting
	scripts/tools.sh rust
	cargo fmt --check

lint: ## clippy, native and WebAssembly
	scripts/tools.sh rust
	cargo clippy --locked --all-targets --all-features -- -D warnings
	cargo clippy --locked $(WEB) --lib --bin web -- -D warnings

test-rust: ## native tests and documentation tests
	scripts/tools.sh rust
	cargo test --locked --all-features

test-torch: ## record real training scripts (VRAM_BUDGET_PYTHON has PyTorch, VRAM_BUDGET_PHANTOM stands in for a GPU); ask a Prometheus server
	scripts/tools.sh rust
	cargo test --locked --all-features --test torch --test prometheus -- --ignored --nocapture

RATE := target/allocator-rate
speed: ## how long one estimate takes, and the rates of the allocator and of a search here and in Chromium
	scripts/tools.sh web browser
	cargo bench --locked --bench estimate
	cargo bench --locked --bench allocator -- real-llama
	cargo bench --locked --bench search
	cargo build --locked $(WEB) --profile web --bin allocator-rate
	wasm-bindgen --target web --no-typescript --out-dir $(RATE) target/wasm32-unknown-unknown/web/allocator-rate.wasm
	wasm-opt -Oz --strip-debug -o $(RATE)/allocator-rate_bg.wasm $(RATE)/allocator-rate_bg.wasm
	node scripts/allocator-rate.mjs $(RATE)

dist: ## the folder dist/ to host, and dist/vram-budget.html to open from disk
	scripts/tools.sh web
	cargo fetch --locked --target wasm32-unknown-unknown
	$(TRUNK) build --release --offline
	node scripts/split.mjs
	node scripts/single-file.mjs

size: ## what the browser downloads, raw and compressed
	node scripts/size.mjs

test-page: ## the built page in a real browser
	scripts/tools.sh browser
	npm test --prefix tests/e2e --silent

accuracy: ## fill the README's accuracy table from the measured cases
	scripts/tools.sh rust
	node scripts/accuracy.mjs

release: dist ## the archive of a release, in target/dist: one program for Linux with glibc 2.28 or later
	scripts/release.sh

screenshots: dist ## retake docs/*.png from the page
	scripts/tools.sh browser
	node tests/e2e/screenshots.js

clean: ## remove what was built
	cargo clean
	rm -rf dist tests/e2e/out
