// Links, hostile input, failure, and the single file.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { fileURLToPath, pathToFileURL } from "node:url";
import { test } from "node:test";
import { DIST, answer, browser, drop, eventually, pasteAnywhere, tasks } from "./browser.js";

const b = browser();
const OOM = readFileSync(new URL("../data/formats/oom-15-pytorch-2.15-expandable-on.txt", import.meta.url), "utf8");
const coded = (json) => `#v1=${Buffer.from(json).toString("base64url")}`;

test("the inputs are in the link, and the link brings them back", async () => {
  const { page, close } = await b.open();
  await page.selectOption("#model", "gpt2");
  await page.fill("#seq-len", "777");
  await page.waitForFunction(() => location.hash.length > 10);
  await page.locator("#share").click();
  await page.waitForFunction(() => document.querySelector("#notice").innerText.includes("Link copied"));
  const link = await page.evaluate(() => navigator.clipboard.readText());
  assert.ok(link.length < 2000, `${link.length} characters`);
  const before = await answer(page);
  await close();

  const again = await b.open({ path: link });
  assert.deepEqual(await answer(again.page), before);
  await eventually(async () => assert.equal(await again.page.inputValue("#model"), "gpt2"));
  assert.equal(await again.page.inputValue("#seq-len"), "777");
  // A link that is opened in the same tab.
  await again.page.evaluate((hash) => (location.hash = hash), coded('{"version":1,"model":{"preset":"gpt2"},"recipe":{"seq_len":64}}'));
  await again.page.waitForFunction(() => document.querySelector("#seq-len").value === "64");
  await again.close();
});

test("hostile links are refused and change nothing", async () => {
  for (const hash of ["#v1=AAAA", "#v9=e30", `#v1=${"A".repeat(200000)}`, "#<script>alert(1)</script>", coded("[".repeat(9000)), coded('{"version":1,"model":{"preset":"nope"}}')]) {
    const { page, close } = await b.open({ path: hash, boot: false });
    await page.locator("#answer").waitFor();
    await eventually(async () => assert.match(await page.locator("main").innerText(), /link|catalogue/i, hash.slice(0, 40)));
    await page.selectOption("#model", "gpt2");
    await page.fill("#seq-len", "512");
    await page.waitForFunction(() => document.querySelector("#model-hint")?.innerText.startsWith("124 M"));
    await close();
  }
});

test("bad configs are refused field by field, all at once, and the page stays live", async () => {
  const { page, close } = await b.open();
  const good = { model_type: "llama", hidden_size: 4096, intermediate_size: 14336, num_hidden_layers: 32, num_attention_heads: 32, num_key_value_heads: 8, vocab_size: 128256 };
  await page.locator("#paste-config").click();
  const issues = async (change) => {
    await page.fill("#config", JSON.stringify({ ...good, ...change }));
    // What is said is about this text once the field's own issue names what was changed.
    const [field] = Object.keys(change);
    await eventually(async () => {
      const said = await page.locator("#config-issue").innerText();
      assert.ok(said.includes(field) || said.includes(String(change[field])), said);
    });
    return page.locator("#config-issue").innerText();
  };
  assert.match(await issues({ model_type: "mamba2", architectures: ["Mamba2ForCausalLM"] }), /mamba2.*llama/is);
  assert.match(await issues({ num_hidden_layers: 0 }), /num_hidden_layers/);
  assert.match(await issues({ num_hidden_layers: 1e9 }), /num_hidden_layers/);
  assert.match(await issues({ hidden_size: -4096 }), /hidden_size/);
  assert.match(await issues({ hidden_size: 4096.5 }), /hidden_size/);
  assert.match(await issues({ num_key_value_heads: 7 }), /num_key_value_heads|num_attention_heads/);
  const all = await issues({ hidden_size: "big", vocab_size: 0, num_hidden_layers: null });
  for (const field of ["hidden_size", "vocab_size"]) assert.match(all, new RegExp(field));
  assert.equal((await answer(page)).verdict, "Does not fit");
  assert.ok(await page.locator(".stale").isVisible(), "the last good answer is marked");
  await page.locator(".problems a").first().click();
  await eventually(async () => assert.equal(await page.evaluate(() => document.activeElement.id), "config"));
  await page.fill("#config", JSON.stringify(good));
  await page.waitForFunction(() => !document.querySelector(".stale"));
  await close();
});

test("too much text and too large files are refused, and the page stays live", async () => {
  const { page, close } = await b.open();
  await page.evaluate(() => (globalThis.big = "x".repeat(33 << 20)));
  await page.evaluate(() => {
    const data = new DataTransfer();
    data.setData("text/plain", globalThis.big);
    document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  });
  await page.waitForFunction(() => document.querySelector("#notice").innerText.includes("at most 32.0 MiB"));
  // A file of 3 GiB, as the browser describes one: it is not read.
  await page.evaluate(() => {
    const file = new File(["{}"], "snapshot.json");
    Object.defineProperty(file, "size", { value: 3 * 2 ** 30 });
    const data = new DataTransfer();
    data.items.add(file);
    const event = new DragEvent("drop", { bubbles: true, cancelable: true });
    Object.defineProperty(event, "dataTransfer", { value: { files: { length: 1, 0: file, item: () => file }, getData: () => "" } });
    document.body.dispatchEvent(event);
  });
  await page.waitForFunction(() => document.querySelector("#notice").innerText.includes("3.00 GiB"));
  await page.fill("#seq-len", "1024");
  await page.waitForFunction(() => document.querySelector("#needed").innerText.startsWith("74.8"));
  await drop(page, "binary", "\u0000\u0001\u0002");
  await page.locator("#paste-issue").waitFor();
  await close();
});

const LINE = "2026-01-02 03:04:05 INFO trainer: step 17 loss 2.3456 lr 1.0e-4 tokens/s 51234\n";

/** Makes a file of `head`, `part` again and again until it has `size` bytes, and `tail`: latin-1 texts. */
async function make(page, name, { head = "", part, tail = "", size }) {
  await page.evaluate(
    ([name, head, part, tail, size]) => {
      const bytes = (text) => Uint8Array.from(text, (char) => char.charCodeAt(0));
      const middle = new Blob([bytes(part)]);
      globalThis.made = new File([bytes(head), ...Array(Math.ceil(size / middle.size)).fill(middle), bytes(tail)], name);
    },
    [name, head, part, tail, size],
  );
}

/** Drops the file that was made. */
async function dropMade(page) {
  await page.evaluate(() => {
    const data = new DataTransfer();
    data.items.add(globalThis.made);
    document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
  });
}

/** A recording as Python pickles it: a small segment, and a block that is handed out and freed again and again. */
function recording() {
  let out = "\x80\x04}(";
  let kept = 0;
  const text = (word) => {
    out += `\x8c${String.fromCharCode(word.length)}${word}\x94`;
    return `h${String.fromCharCode(kept++)}`;
  };
  const SIZE = "J\0\0\x20\0";
  text("segments"), (out += "](}(");
  text("address"), (out += "J\0\0\0\x10"), text("total_size"), (out += SIZE), text("device"), (out += "K\0");
  text("segment_type"), text("small"), text("blocks"), (out += "](}(");
  const size = text("size");
  (out += SIZE), text("state"), text("inactive"), (out += "ueue");
  text("device_traces"), (out += "](](}(");
  const action = text("action");
  text("segment_alloc");
  const addr = text("addr");
  out += `J\0\0\0\x10${size}${SIZE}`;
  const stream = text("stream");
  out += "K\0";
  const frames = text("frames");
  out += "](}(";
  text("filename"), text("/usr/lib/python3/site-packages/model/layers.py");
  const line = text("line");
  out += "K\x07ueu";
  const words = ["alloc", "free_requested", "free_completed"].map((word) => {
    out += "}(";
    const kept = text(word);
    (out += `N${action}`), text("snapshot"), (out += `${size}K\0u`);
    return kept;
  });
  const entry = (word) => `}(${action}${word}${addr}\x8a\x04\0\0\0\x10${size}M\0\x02${stream}K\0${frames}](}(${line}K\x09ueu`;
  const part = `e(${words.map(entry).join("").repeat(333)}`;
  return { head: out, part: part.repeat(30), tail: "eeu." };
}

test("a log of 100 MB is searched while the page stays live", async () => {
  const { page, close } = await b.open();
  await make(page, "train.log", { part: LINE.repeat(10_000), tail: OOM, size: 100e6 });
  const all = await tasks(page, async () => {
    await dropMade(page);
    await page.locator("#reading progress").waitFor();
    await page.waitForFunction(() => /train\.log: [1-9].* MiB of 95\.\d MiB/.test(document.querySelector("#reading-line")?.innerText));
    await page.fill("#seq-len", "1024");
    await eventually(async () => assert.equal(await page.inputValue("#seq-len"), "1024"));
    await page.locator("#reading").waitFor();
    await page.locator("#measured-status .cause").first().waitFor({ timeout: 300_000 });
    assert.equal(await page.locator("#reading").count(), 0);
  });
  assert.ok(all.at(-1) < 50, `the longest task took ${all.at(-1)} ms`);
  await close();
});

test("a recording of 100 MB is read while the page stays live, and reading can be cancelled", async () => {
  const { page, close } = await b.open();
  await make(page, "dump.pickle", { ...recording(), size: 100e6 });
  const all = await tasks(page, async () => {
    await dropMade(page);
    await page.locator("#reading progress").waitFor();
    await page.locator("#stop-reading").click();
    await eventually(async () => assert.equal(await page.locator("#reading").count(), 0));
    await dropMade(page);
    await page.locator("#reading progress").waitFor();
    await page.locator("#recording-totals").waitFor({ timeout: 300_000 });
  });
  assert.match(await page.locator("#recording-totals").innerText(), /reserved\s+2\.00 MiB/);
  assert.match(await page.locator("#measured-status").innerText(), /device 0, 1 segments, \d{7} entries/);
  assert.match(await page.locator("#recording-replays").innerText(), /as recorded: defaults\s+512 B\s+2\.00 MiB/);
  assert.ok(all.at(-1) < 50, `the longest task took ${all.at(-1)} ms`);
  await close();
});

test("a long text is pasted, and a packed recording picked", async () => {
  const { page, close } = await b.open();
  await pasteAnywhere(page, LINE.repeat(50_000) + OOM);
  await page.locator("#measured-status .cause").first().waitFor({ timeout: 60_000 });
  await page.setInputFiles("#file", fileURLToPath(new URL("../data/snapshots/s08-llama-oom.pickle.gz", import.meta.url)));
  await page.locator("#recording-replays").waitFor({ timeout: 60_000 });
  assert.match(await page.locator("#recording").innerText(), /runs out of memory at the same entry/);
  await page.locator("#recording").getByRole("button", { name: "Forget" }).click();
  await eventually(async () => assert.equal(await page.locator("#recording").count(), 0));
  await close();
});

test("pasting into a field is the field's own", async () => {
  const { page, close } = await b.open();
  await page.locator("#seq-len").focus();
  await page.locator("#seq-len").evaluate((field) => {
    const data = new DataTransfer();
    data.setData("text/plain", '{"model_type": "gpt2"}');
    field.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  });
  assert.equal(await page.inputValue("#model"), "llama-3.1-8b");
  await pasteAnywhere(page, '{"version":1,"model":{"preset":"gpt2"},"recipe":{"seq_len":64}}');
  await page.waitForFunction(() => document.querySelector("#seq-len").value === "64");
  await close();
});

test("it works offline once it has loaded", async () => {
  const { page, context, close } = await b.open();
  await context.setOffline(true);
  await page.selectOption("#gpu", "H200 SXM 141GB");
  await page.waitForFunction(() => document.querySelector("#verdict").innerText === "Fits");
  await page.getByRole("button", { name: "script output" }).click();
  await page.locator("#measured-table").waitFor();
  await close();
});

for (const stored of [null, "dark"]) {
  test(`the first answer is drawn by the first half alone as by the whole, with ${stored ?? "no"} colours stored`, async () => {
    const first = async (path, rest) => {
      const setup = async (page) => {
        // What waits for the rest waits for ever.
        await page.route("**/rest-*.wasm", rest);
        await page.addInitScript((stored) => {
          Storage.prototype.getItem = () => stored;
          addEventListener("vram-budget:started", async () => {
            for (let i = 0; i < 10; i++) await null;
            globalThis.first = document.querySelector("#app").innerHTML;
          });
        }, stored);
      };
      const { page, close } = await b.open({ path, boot: false, setup });
      await page.locator("#verdict").waitFor();
      await page.waitForTimeout(300);
      const drawn = await page.evaluate(() => globalThis.first);
      assert.equal(await page.evaluate(() => performance.getEntriesByType("resource").filter((e) => e.initiatorType === "xmlhttprequest").length), 0);
      await close();
      return drawn;
    };
    const half = await first("", () => {});
    assert.match(half, /74\.8/);
    assert.equal(half, await first(pathToFileURL(`${DIST}vram-budget.html`).href, (route) => route.abort()));
  });
}

test("a start that the first half alone does not manage begins again with both", async () => {
  const setup = (page) =>
    page.addInitScript(() => {
      // A panic, which the first half knows nothing of.
      const refuse = () => {
        throw new Error("no more elements");
      };
      Document.prototype.createElement = refuse;
      Node.prototype.cloneNode = refuse;
      Node.prototype.insertBefore = refuse;
    });
  const { page, close } = await b.open({ boot: false, setup });
  await page.locator("#panic").waitFor({ state: "visible" });
  assert.equal(new URL(page.url()).hash, "#job");
  await close({ expected: [/./] });
});

test("an input before the rest of the program is there waits for it", async () => {
  const late = async (route) => {
    await new Promise((done) => setTimeout(done, 1500));
    await route.continue();
  };
  const { page, close } = await b.open({ boot: false, setup: (page) => page.route("**/rest-*.wasm", late) });
  await page.locator("#verdict").waitFor();
  await page.fill("#seq-len", "1024");
  await page.selectOption("#gpu", "H200 SXM 141GB");
  await page.waitForFunction(() => document.querySelector("#verdict").innerText === "Fits");
  await close();
});

test("where the rest of the program cannot be had the inputs are kept", async () => {
  const { page, close } = await b.open({ boot: false, setup: (page) => page.route("**/rest-*.wasm", (route) => route.abort()) });
  await page.locator("#verdict").waitFor();
  await page.evaluate(() => document.querySelector("#seq-len").dispatchEvent(new InputEvent("input", { bubbles: true })));
  await page.locator("#panic").waitFor({ state: "visible" });
  assert.equal(await page.locator("#panic-link").inputValue(), b.url);
  await close({ expected: [/./] });
});

test("a program that does not start says so", async () => {
  const { page, close } = await b.open({ boot: false, setup: (page) => page.route("**/*.wasm", (route) => route.abort()) });
  await page.locator("#boot-failed").waitFor({ state: "visible" });
  assert.match(await page.locator("#boot-failed").innerText(), /did not start/);
  await close({ expected: [/Failed to load|ERR_FAILED|Failed to fetch|wasm/i] });
});

test("a panic shows a panel that keeps the inputs", async () => {
  const { page, close } = await b.open();
  await page.fill("#seq-len", "1234");
  await page.waitForFunction(() => location.hash.length > 10);
  // The program cannot go on when the browser refuses to make an element.
  await page.evaluate(() => {
    const refuse = () => {
      throw new Error("no more elements");
    };
    Document.prototype.createElement = refuse;
    Node.prototype.cloneNode = refuse;
    Node.prototype.insertBefore = refuse;
  });
  await page.evaluate(() => document.querySelector("#bill-table .cell").click()).catch(() => {});
  await page.locator("#panic").waitFor({ state: "visible" });
  const link = await page.locator("#panic-link").inputValue();
  assert.ok((await page.locator("#panic-message").inputValue()).length > 10);
  await close({ expected: [/./] });
  const again = await b.open({ path: link });
  assert.equal(await again.page.inputValue("#seq-len"), "1234");
  await again.close();
});

test("without JavaScript the page says what it needs", async () => {
  const context = await (await import("./browser.js")).launch();
  const page = await (await context.newContext({ javaScriptEnabled: false })).newPage();
  await page.goto(b.url);
  assert.match(await page.locator("body").innerText(), /needs JavaScript/);
  await context.close();
});

test("the single file opens from disk and does the same", async () => {
  const { page, requests, close } = await b.open({ path: pathToFileURL(`${DIST}vram-budget.html`).href });
  assert.deepEqual(await answer(page), { verdict: "Does not fit", needed: 74.8 });
  await page.selectOption("#gpu", "H200 SXM 141GB");
  await page.waitForFunction(() => document.querySelector("#verdict").innerText === "Fits");
  await page.waitForFunction(() => location.hash.length > 10);
  await page.getByRole("button", { name: "script output" }).click();
  await page.locator("#measured-table").waitFor();
  await make(page, "train.log", { part: LINE, tail: OOM, size: 1e6 });
  await dropMade(page);
  await page.locator("#measured-status .cause").first().waitFor({ timeout: 60_000 });
  assert.equal(requests.length, 1, `it loads nothing else: ${requests}`);
  await close();
});

test("the served page loads nothing but its own files", async () => {
  const { requests, close } = await b.open();
  assert.ok(requests.length >= 4 && requests.every((url) => url.startsWith(b.url)), requests.join("\n"));
  await close();
});

test("an input is answered at once and refined later, and nothing jumps or is said to fit meanwhile", async () => {
  const { page, close } = await b.open();
  await page.selectOption("#gpu", "H200 SXM 141GB");
  await page.waitForFunction(() => document.querySelector("#verdict").innerText === "Fits" && !document.querySelector("[aria-busy]"));
  const seen = await page.evaluate(async () => {
    const seen = [];
    const note = () => {
      const text = (selector) => document.querySelector(selector).innerText;
      seen.push({
        busy: document.querySelector("#answer").ariaBusy === "true",
        verdict: text("#verdict"),
        sums: text(".sums"),
        margin: text("#margin .fact"),
        heights: [".stick", "main"].map((selector) => document.querySelector(selector).scrollHeight),
      });
    };
    note();
    const field = document.querySelector("#seq-len");
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(field, "2100");
    field.dispatchEvent(new InputEvent("input", { bubbles: true }));
    await new Promise((done) => requestAnimationFrame(done));
    note();
    while (document.querySelector("[aria-busy]")) await new Promise((done) => setTimeout(done, 20));
    note();
    return seen;
  });
  const [before, quick, after] = seen;
  assert.deepEqual([before.busy, quick.busy, after.busy], [false, true, false]);
  assert.deepEqual([before.verdict, quick.verdict, after.verdict], ["Fits", "Checking…", "Fits"]);
  assert.match(quick.sums, /Reserved\s+refining…/);
  assert.equal(quick.margin, before.margin, "the walk below follows once, in a later frame");
  assert.notEqual(before.margin, after.margin);
  assert.deepEqual(quick.heights, after.heights, "nothing jumps when the replay is done");
  await close();
});

test("input to repaint, reported", async () => {
  const { page, close } = await b.open();
  await page.locator("#answer .try:not([aria-busy])").waitFor();
  // The processor's time of each task of the page, whatever else the machine is doing.
  const cdp = await page.context().newCDPSession(page);
  const events = [];
  cdp.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  await cdp.send("Tracing.start", { transferMode: "ReportEvents", traceConfig: { includedCategories: ["devtools.timeline", "disabled-by-default-devtools.timeline"] } });
  const times = await page.evaluate(async () => {
    const field = document.querySelector("#seq-len");
    const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
    const times = [];
    for (let i = 0; i < 21; i++) {
      // Now and then long enough for the answer to be refined and its remedies to be priced.
      await new Promise((done) => setTimeout(done, i % 5 ? 60 : 1500));
      const start = performance.now();
      set.call(field, String(1024 + i));
      field.dispatchEvent(new InputEvent("input", { bubbles: true }));
      await new Promise((done) => {
        requestAnimationFrame(() => {
          const channel = new MessageChannel();
          channel.port1.onmessage = done;
          channel.port2.postMessage(0);
        });
      });
      times.push(performance.now() - start);
    }
    return times;
  });
  const complete = new Promise((done) => cdp.on("Tracing.tracingComplete", done));
  await cdp.send("Tracing.end");
  await complete;
  const inputs = events.filter((e) => e.name === "EventDispatch" && e.args.data?.type === "input");
  const tasks = events.filter((e) => e.name === "RunTask" && e.pid === inputs[0].pid && e.tid === inputs[0].tid && e.tdur);
  const isInput = (task) => inputs.some((e) => e.ts >= task.ts && e.ts < task.ts + task.dur);
  // What an input costs until it is seen: its own task and the frame after it.
  const isFrame = (task) => events.some((e) => e.name === "Layerize" && e.tid === task.tid && e.ts >= task.ts && e.ts < task.ts + task.dur);
  const ordered = tasks.sort((a, b) => a.ts - b.ts);
  const seen = ordered.filter(isInput).map((task) => (task.tdur + ordered.find((frame) => frame.ts > task.ts && isFrame(frame)).tdur) / 1000);
  const sorted = (all) => all.sort((a, b) => a - b);
  const of = sorted(tasks.filter(isInput).map((task) => task.tdur / 1000));
  const other = sorted(tasks.filter((task) => !isInput(task)).map((task) => task.tdur / 1000));
  const middle = (all) => all[all.length >> 1].toFixed(1);
  console.log(`input to repaint: median ${middle(sorted(times))} ms, slowest ${times.at(-1).toFixed(1)} ms (waiting for the frame included)`);
  console.log(`processor time from input to repaint: median ${middle(sorted(seen))} ms, most ${seen.at(-1).toFixed(1)} ms`);
  console.log(`processor time: an input's task median ${middle(of)} ms, longest ${of.at(-1).toFixed(1)} ms; longest other task ${other.at(-1).toFixed(1)} ms`);
  await close();
});
