// Millions of events per second of the allocator in Chromium, on the recorded training loops: `make speed`.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { launch } from "../tests/e2e/browser.js";
import { serve } from "./serve.mjs";

const TRACES = "tests/data/allocator/traces/";
const names = readdirSync(TRACES).filter((name) => name.startsWith("real-llama-")).sort();
const traces = names.map((name) => gunzipSync(readFileSync(TRACES + name)).toString());

const dir = process.argv[2];
writeFileSync(`${dir}/index.html`, "<!doctype html><title>allocator</title>");
const { server, url } = await serve(dir);
const browser = await launch();
const page = await browser.newPage();
await page.goto(url);
const rates = await page.evaluate(async (traces) => {
  globalThis.traces = traces;
  await (await import("./allocator-rate.js")).default();
  return globalThis.rates;
}, traces);
await browser.close();
server.close();
names.forEach((name, i) => console.log(`${name.replace(".json.gz", "").padEnd(45)} ${rates[i].toFixed(1)} million events/s in Chromium`));
