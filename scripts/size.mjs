// What a visit downloads, raw and compressed: until the first answer is drawn, against the budget, and then.
import { readdirSync, readFileSync } from "node:fs";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const BUDGET = 260_000;
const dir = "dist";
const sizes = (name) => {
  const raw = readFileSync(`${dir}/${name}`);
  const brotli = brotliCompressSync(raw, { params: { [constants.BROTLI_PARAM_SIZE_HINT]: raw.length } });
  return [raw.length, gzipSync(raw, { level: 9 }).length, brotli.length];
};
const row = (name, numbers) => console.log(name.padEnd(40) + numbers.map((n) => n.toLocaleString("en").padStart(12)).join(""));

console.log("size, bytes".padEnd(40) + ["raw", "gzip", "brotli"].map((h) => h.padStart(12)).join(""));
const total = [0, 0, 0];
const isRest = (name) => /^rest-.*\.wasm$/.test(name);
const all = readdirSync(dir).filter((name) => name !== "vram-budget.html").sort();
const files = all.filter((name) => !isRest(name));
for (const name of files) {
  const numbers = sizes(name);
  numbers.forEach((n, i) => (total[i] += n));
  row(name, numbers);
}
row("first load", total);
for (const name of all.filter(isRest)) row(`once the answer is drawn: ${name.slice(0, 4)}…`, sizes(name));
row("vram-budget.html (single file)", sizes("vram-budget.html"));
console.log(`first load: ${(total[2] / 1000).toFixed(1)} kB of ${BUDGET / 1000} kB, brotli${total[2] > BUDGET ? ": over the budget" : ""}`);
