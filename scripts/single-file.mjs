// Makes dist/vram-budget.html: the whole page in one file that opens from disk. A page from file:// may load neither
// modules nor WebAssembly by URL, so the glue is a classic script and the program is base64 text in the page. Its
// content security policy allows exactly the scripts and the style that are in it, by their hashes.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const target = process.env.CARGO_TARGET_DIR ?? "target";
const dir = mkdtempSync(join(tmpdir(), "vram-budget-"));
try {
  const run = (program, ...args) => execFileSync(program, args, { stdio: ["ignore", "inherit", "inherit"] });
  run("wasm-bindgen", `${target}/wasm32-unknown-unknown/web/web.wasm`, "--target", "no-modules", "--no-typescript", "--out-dir", dir);
  run("wasm-opt", "-Oz", "--strip-debug", "--strip-producers", join(dir, "web_bg.wasm"), "-o", join(dir, "web.wasm"));

  const read = (path) => readFileSync(path, "utf8");
  const glue = read(join(dir, "web.js"));
  const boot = read("static/boot.js");
  const style = read("static/style.css");
  const wasm = readFileSync(join(dir, "web.wasm")).toString("base64");
  for (const [name, text, end] of [["glue", glue, "</script"], ["boot.js", boot, "</script"], ["style", style, "</style"]]) {
    if (text.toLowerCase().includes(end)) throw new Error(`${name} contains ${end}`);
  }

  const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
  const policy = [
    "default-src 'none'",
    `script-src ${hash(glue)} ${hash(boot)} 'wasm-unsafe-eval'`,
    `style-src ${hash(style)}`,
    // The worker that reads long files begins from the page's own scripts.
    "worker-src blob:",
    "img-src data:",
  ].join("; ");

  // A function as replacement: `$` in the inserted text means nothing.
  const replaced = (html, pattern, text) => {
    if (!pattern.test(html)) throw new Error(`index.html has no ${pattern}`);
    return html.replace(pattern, () => text);
  };
  let html = read("index.html");
  html = replaced(html, /(?<=<meta http-equiv="Content-Security-Policy" content=")[^"]*/, policy);
  html = replaced(html, /<link data-trunk rel="css"[^>]*>\n/, `<style>${style}</style>\n`);
  html = replaced(html, /<link data-trunk rel="copy-file"[^>]*>\n/, "");
  html = replaced(html, /<link data-trunk rel="rust"[^>]*>\n/, "");
  html = replaced(
    html,
    /<\/body>/,
    `<script type="application/octet-stream" id="wasm">${wasm}</script>\n<script>${glue}</script>\n<script>${boot}</script>\n</body>`,
  );
  if (html.includes("data-trunk")) throw new Error("a trunk directive is left in the page");
  writeFileSync("dist/vram-budget.html", html);
} finally {
  rmSync(dir, { recursive: true, force: true });
}
