// What a person comes for: describe a job, read the verdict and the bill, walk the steps, compare a measurement.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { WIDTHS, answer, browser, closeAnswer, drop, eventually, openAnswer, pasteAnywhere, tasks } from "./browser.js";

const b = browser();

// The first step of the page's example, measured: see tests/data/training-steps.
const MEASURED = {
  base: 16060523520,
  forward_delta: 14281172480,
  backward_delta: 1779383296,
  step_delta: 32121044992,
  peak: 80302646784,
};
const CONFIG = {
  model_type: "llama",
  hidden_size: 2048,
  intermediate_size: 8192,
  num_hidden_layers: 16,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  vocab_size: 128256,
  tie_word_embeddings: true,
};

for (const { name, ...size } of WIDTHS) {
  test(`${name}: the first paint is a computed example, and every keystroke changes it`, async () => {
    const { page, close } = await b.open(size);
    assert.deepEqual(await answer(page), { verdict: "Does not fit", needed: 74.8 });
    assert.equal(await page.getByRole("button", { name: /calculate/i }).count(), 0);
    const seen = [74.8];
    await page.locator("#seq-len").focus();
    await page.keyboard.press("End");
    for (const digit of "00") {
      await page.keyboard.type(digit);
      await page.waitForFunction((last) => !document.querySelector("#needed").innerText.startsWith(last), String(seen.at(-1)));
      seen.push((await answer(page)).needed);
    }
    assert.equal(new Set(seen).size, 3, `three different figures: ${seen}`);
    await close();
  });

  test(`${name}: every input changes the answer or says that it does not matter`, async () => {
    const { page, close } = await b.open(size);
    const text = () => page.locator("#answer").textContent();
    const changes = async (what, act) => {
      const before = await text();
      await act();
      await page.waitForFunction((before) => document.querySelector("#answer").textContent !== before, before, { timeout: 5000 }).catch(() => {
        throw new Error(`${what} changed nothing`);
      });
    };
    await changes("model", () => page.selectOption("#model", "llama-2-7b"));
    await changes("GPU", () => page.selectOption("#gpu", "A100 SXM4 80GB"));
    await changes("memory in use", async () => {
      await page.locator("#in-use-unknown").uncheck();
      await page.fill("#in-use", "2 GiB");
    });
    await changes("precision", () => page.selectOption("#precision", { label: "FP32" }));
    await changes("optimizer", () => page.selectOption("#optimizer", { label: "SGD" }));
    await changes("momentum", () => page.fill("#momentum", "0.9"));
    await changes("implementation", () => page.selectOption("#implementation", { label: "for-loop" }));
    await changes("micro-batch", () => page.fill("#micro-batch", "4"));
    await changes("attention", () => page.selectOption("#attention", { label: "eager" }));
    await changes("checkpointing", () => page.locator("#checkpointing").selectOption({ label: "every layer" }));
    await changes("kinds of checkpointing", () => page.locator("#checkpointing").selectOption({ label: "every 2nd layer" }));
    await changes("loss", () => page.locator("#loss").selectOption({ index: 2 }));
    await page.fill("#grad-accum", "8");
    await page.locator("#more-inputs > summary").click();
    await changes("MIG slice", () => page.fill("#mig-slice", "19.5 GiB"));
    await changes("context", () => page.fill("#context", "800 MiB"));
    await page.fill("#mig-slice", "");
    await changes("not knowing the GPU", () => page.selectOption("#gpu", { label: "I don’t know" }));
    await eventually(async () => assert.equal((await answer(page)).verdict, "Cannot tell"));
    // One's own card.
    await page.selectOption("#gpu", { label: "My own card…" });
    await page.fill("#gpu-name", "prototype");
    await page.fill("#gpu-memory", "400 GiB");
    await page.waitForFunction(() => document.querySelector("#verdict").innerText === "Fits");
    await close();
  });

  test(`${name}: lists can be searched`, async () => {
    const { page, close } = await b.open(size);
    await page.fill("#find-model", "qwen 7b");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => /^qwen.*7b/.test(document.querySelector("#model").value));
    await page.fill("#find-gpu", "h200");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector("#gpu").value.startsWith("H200"));
    await close();
  });

  test(`${name}: a config.json is pasted, picked and dropped`, async () => {
    const { page, close } = await b.open(size);
    const text = JSON.stringify(CONFIG, null, 2);
    const hint = page.locator("#model-hint");
    // Llama-3.2-1B: 1.24 B parameters (1235814400, published).
    const isOurs = () => page.waitForFunction(() => document.querySelector("#model-hint")?.innerText.startsWith("1.24 B parameters"));
    await page.locator("#paste-config").click();
    await page.fill("#config", text);
    await isOurs();
    await page.getByRole("button", { name: "Back to the presets" }).click();
    await page.waitForFunction(() => document.querySelector("#model-hint").innerText.startsWith("8.03 B"));

    await page.setInputFiles("#file", { name: "config.json", mimeType: "application/json", buffer: Buffer.from(text) });
    await isOurs();
    await page.selectOption("#model", "gpt2");
    await page.fill("#seq-len", "1024");
    await page.waitForFunction(() => document.querySelector("#model-hint").innerText.startsWith("124 M"));

    await drop(page, "config.json", text);
    await isOurs();
    await page.selectOption("#model", "gpt2");
    await pasteAnywhere(page, text);
    await isOurs();
    await eventually(async () => assert.match(await page.locator("#notice").innerText(), /config\.json/));
    assert.ok(await hint.isVisible());
    await close();
  });

  test(`${name}: verdict, peak, capacity, bar and binding instant are in sight; the bill opens to formulas`, async () => {
    const { page, close } = await b.open(size);
    // In sight at the top and at the very end of the page.
    for (const at of [0, 1e6]) {
      await page.evaluate((y) => scrollTo(0, y), at);
      const box = await page.locator("#verdict").boundingBox();
      assert.ok(box.y >= 0 && box.y + box.height <= size.height, `the verdict is on screen at ${at}`);
    }
    assert.match(await page.locator("#needed").innerText(), /74\.8 GiB needed, 23\.\d GiB usable/);
    await openAnswer(page);
    await page.locator("#answer svg.stack").waitFor();
    assert.equal(await page.locator("#answer svg.stack .p-w, #answer svg.stack .p-s, #answer svg.stack .p-g").count(), 3);
    assert.match(await page.locator("#answer .because").allInnerTexts().then((all) => all.join(" ")), /optimizer step/);
    await page.locator("#answer .because .term").click();
    assert.ok(await page.locator("#term-foreach").isVisible());
    await page.keyboard.press("Escape");
    await closeAnswer(page);

    const table = page.locator("#bill-table");
    assert.deepEqual(await table.locator("thead th").allInnerTexts().then((all) => all.map((t) => t.split("\n")[0].trim())), [
      "Part", "Forward", "Loss", "Backward", "Optimizer step",
    ]);
    assert.equal(await table.locator("tbody > tr").count(), 7);
    // Each column adds up as it is shown.
    const rows = await table.locator("tbody > tr").evaluateAll((all) => all.slice(0, 6).map((tr) => [...tr.querySelectorAll("td")].map((td) => Number(td.innerText))));
    for (let column = 0; column < 4; column++) {
      const sum = rows.slice(0, 5).reduce((total, row) => total + Math.round(row[column] * 100), 0);
      assert.equal(sum, Math.round(rows[5][column] * 100), `column ${column}`);
    }
    const cell = table.locator("tbody > tr").nth(3).locator(".cell").nth(1);
    await cell.click();
    await eventually(async () => assert.equal(await cell.getAttribute("aria-expanded"), "true"));
    const opened = page.locator("#open-cell");
    assert.match(await opened.innerText(), /Formula|×/);
    assert.match(await opened.innerText(), /2048/);
    assert.match(await opened.innerText(), /modelled/i);
    await cell.click();
    await eventually(async () => assert.equal(await opened.count(), 0));
    await close();
  });

  test(`${name}: four steps, any of them at any time, with thresholds and remedies to try and undo`, async () => {
    const { page, close } = await b.open(size);
    for (const [name, id] of [["Throughput", "throughput"], ["Rigid cost", "rigid"], ["Margin", "margin"], ["Activations", "activations"]]) {
      await page.getByRole("navigation").getByRole("link", { name: new RegExp(name) }).click();
      await eventually(async () => assert.equal(await page.locator(`nav a[href="#${id}"]`).getAttribute("aria-current"), "step"));
      const heading = page.locator(`#h-${id}`);
      const box = await heading.boundingBox();
      assert.ok(box.y >= 0 && box.y < size.height, `${name} is on screen`);
      assert.ok(await heading.evaluate((h) => h === document.activeElement), `${name} has the focus`);
      assert.ok((await page.locator(`#${id} .ask`).innerText()).endsWith("?"));
    }
    assert.match(await page.locator("#rigid .fact").innerText(), /59\.8 GiB = 253\s%/);
    await page.locator("#rigid").getByText("Why this rule").click();
    await page.fill("#rigid-share", "99");
    await page.waitForFunction(() => document.querySelector("#rigid .gauge").getAttribute("aria-label").includes("99"));
    await page.locator("#rigid").getByRole("button", { name: "Back to the defaults" }).click();
    await eventually(async () => assert.equal(await page.inputValue("#rigid-share"), "80"));

    const before = await answer(page);
    await page.locator("#margin").getByRole("button", { name: "Try AdamW fused" }).click();
    await page.waitForFunction(() => !document.querySelector("#needed").innerText.startsWith("74.8"));
    await eventually(async () => assert.equal(await page.inputValue("#implementation"), "1"));
    await page.locator("#undo").click();
    await page.waitForFunction(() => document.querySelector("#needed").innerText.startsWith("74.8"));
    assert.deepEqual(await answer(page), before);
    assert.match(await page.locator("#throughput .fact").innerText(), /tokens\/s/);
    await close();
  });

  test(`${name}: a job of several phases shows which of them binds`, async () => {
    const { page, close } = await b.open(size);
    assert.equal(await page.locator("#phases").count(), 0);
    await page.selectOption("#model", "qwen2.5-0.5b");
    await page.locator("#more-inputs > summary").click();
    await page.selectOption("#method", { label: "rewards (GRPO)" });
    const rows = page.locator("#phases tbody tr");
    await eventually(async () => assert.deepEqual(await rows.evaluateAll((all) => all.map((tr) => tr.firstChild.innerText)), ["Generation", "Training step"]));
    assert.deepEqual(await rows.evaluateAll((all) => all.map((tr) => tr.children[2].innerText)), ["", "binds"]);
    assert.match(await rows.first().innerText(), /key-value cache \d/);
    // Completions for 64 micro-batches at once: the answer and the bill speak of them.
    await page.fill("#grad-accum", "64");
    await eventually(async () => assert.deepEqual(await rows.evaluateAll((all) => all.map((tr) => tr.children[2].innerText)), ["binds", ""]));
    const because = await page.locator("#answer .because").allTextContents();
    assert.match(because.join(" "), /The peak is while completions are generated, not in the training step/);
    assert.match(await page.locator("#answer .sums thead").textContent(), /^While completions are generated/);
    assert.equal(await page.locator("#bill-table th.now").count(), 0);
    await page.selectOption("#method", { label: "the next token" });
    await eventually(async () => assert.equal(await page.locator("#phases").count(), 0));
    await close();
  });

  test(`${name}: the plans around the job are searched off the main thread, and one is taken over`, async () => {
    const { page, close } = await b.open(size);
    await page.selectOption("#model", "gpt2");
    await page.fill("#seq-len", "256");
    await page.fill("#grad-accum", "4");
    await page.locator("#search-panel > summary").click();
    const long = await tasks(page, async () => {
      await page.locator("#start-search").click();
      await page.locator("#search-table").waitFor({ timeout: 120_000 });
    });
    assert.ok(long.at(-1) <= 50, `the longest task took ${long.at(-1)} ms`);
    const heads = await page.locator("#search-table h3").allInnerTexts();
    assert.match(heads.join("\n"), /no other beats.*\nfastest that fits\nlargest micro-batch that fits\nlongest sequence that fits, of those tried\nsmallest GPU that does it: /);
    const largest = page.locator("#search-table h3:has-text('largest micro-batch') + ul");
    await largest.getByRole("button").click();
    await eventually(async () => assert.deepEqual([await page.inputValue("#micro-batch"), await page.inputValue("#grad-accum")], ["4", "1"]));
    await page.locator("#undo").click();
    await eventually(async () => assert.equal(await page.inputValue("#grad-accum"), "4"));
    await page.selectOption("#model", "llama-3.1-8b");
    await page.locator("#start-search").click();
    await page.locator("#stop-search").click();
    await page.locator("#start-search").waitFor();
    await close();
  });

  test(`${name}: every rank of a pipeline is walked off the main thread, and the one that binds is named`, async () => {
    const { page, close } = await b.open(size);
    await page.selectOption("#model", "llama-3.1-8b");
    await page.locator("#more-inputs > summary").click();
    await page.fill("#world-size", "8");
    await page.selectOption("#sharding", { label: "Megatron-LM" });
    await page.selectOption("#precision", { index: await page.locator("#precision option").evaluateAll((all) => all.findIndex((of) => /master/.test(of.label))) });
    await page.fill("#pipeline", "4");
    await page.fill("#grad-accum", "8");
    await page.locator("#ranks-panel > summary").click();
    const long = await tasks(page, async () => {
      await page.locator("#start-ranks").click();
      await page.locator("#ranks-table").waitFor({ timeout: 60_000 });
    });
    assert.ok(long.at(-1) <= 50, `the longest task took ${long.at(-1)} ms`);
    assert.match(await page.locator("#ranks-table p").innerText(), /^Rank [03] holds the most, .* more than Rank \d, mostly /);
    assert.equal(await page.locator("#ranks-table tbody tr").count(), 4);
    await page.fill("#grad-accum", "1");
    await page.getByText("These are the ranks of earlier inputs.").waitFor();
    await close();
  });

  test(`${name}: adapters are chosen where the rigid cost is, and stay in the link`, async () => {
    const { page, close } = await b.open(size);
    const before = await answer(page);
    await page.locator("#lora").check();
    await eventually(async () => assert.ok((await answer(page)).needed < before.needed / 2));
    await page.fill("#lora-rank", "64");
    const targets = page.locator("#rigid fieldset input[type=checkbox]");
    assert.equal(await targets.count(), 7);
    const all = await answer(page);
    for (let i = 2; i < 7; i++) await targets.nth(i).uncheck();
    await eventually(async () => assert.ok((await answer(page)).needed < all.needed));
    const few = await answer(page);
    await page.waitForFunction(() => location.hash.length > 10);
    await page.waitForTimeout(400);
    const again = await b.open({ ...size, path: await page.evaluate(() => location.hash) });
    assert.deepEqual(await answer(again.page), few);
    assert.equal(await again.page.inputValue("#lora-rank"), "64");
    await again.close();
    await page.locator("#lora-off").check();
    await eventually(async () => assert.deepEqual(await answer(page), before));
    // What an optimizer lacks is not offered.
    await page.selectOption("#optimizer", { label: "Adafactor (PyTorch)" });
    await eventually(async () => assert.ok(!(await page.locator("#implementation").innerText()).includes("fused")));
    await close();
  });

  test(`${name}: an out-of-memory message is read back and explained, pasted and dropped`, async () => {
    const { page, close } = await b.open(size);
    const before = await answer(page);
    const text = readFileSync(new URL("../data/formats/oom-10-pytorch-2.2-other-process.txt", import.meta.url), "utf8");
    for (const bring of [pasteAnywhere, (page, text) => drop(page, "log.txt", text)]) {
      await bring(page, text);
      const said = page.locator("#measured-status");
      await eventually(async () => assert.match(await said.innerText(), /Read as: PyTorch 2\.2.*14\.7 GiB of 23\.6 GiB allocated.*asked for 202 MiB more/));
      assert.match(await said.locator(".cause").first().innerText(), /7\.38 GiB/);
      assert.match(await said.innerText(), /Try first:/);
      assert.equal(await page.locator("#measured-table").count(), 0);
      assert.deepEqual(await answer(page), before);
      await page.getByRole("button", { name: "Forget it" }).click();
      await eventually(async () => assert.equal(await said.locator(".cause").count(), 0));
    }
    await close();
  });

  test(`${name}: a measurement is compared, its unit asked for, and garbage changes nothing`, async () => {
    const { page, close } = await b.open(size);
    await page.fill("#paste", JSON.stringify(MEASURED));
    const table = page.locator("#measured-table");
    await table.waitFor();
    const rows = await table.locator("tbody tr").evaluateAll((all) => all.map((tr) => [...tr.children].map((td) => td.innerText)));
    assert.equal(rows.length, 5);
    for (const [reading, predicted, measured] of rows) {
      // The walk is within 1 % of this measurement at every instant.
      const difference = Math.abs(Number(predicted.replace("−", "-")) - Number(measured.replace("−", "-")));
      assert.ok(difference <= 0.01 * Math.max(1, Number(measured)), `${reading}: ${predicted} against ${measured}`);
    }

    const gib = Object.fromEntries(Object.entries(MEASURED).map(([key, bytes]) => [key, +(bytes / 2 ** 30).toFixed(3)]));
    await page.fill("#paste", JSON.stringify(gib));
    await page.locator("#unit-question").getByRole("button", { name: /^GiB/ }).click();
    await eventually(async () => assert.match(await page.locator("#measured-status").innerText(), /in GiB/));
    const kept = await table.innerText();

    const answerBefore = await answer(page);
    await page.fill("#paste", '{"base": 1,\n "forward_delta": oops}');
    await eventually(async () => assert.match(await page.locator("#paste-issue").innerText(), /line 2, column \d+/i));
    await page.fill("#paste", "it said out of memory, I think");
    await eventually(async () => assert.match(await page.locator("#paste-issue").innerText(), /not a format.*expected/i));
    assert.equal(await table.innerText(), kept, "the last measurement stays");
    assert.deepEqual(await answer(page), answerBefore);

    await page.getByRole("button", { name: "measurement document" }).click();
    await page.getByRole("button", { name: "Use the job it was measured on" }).click();
    await page.waitForFunction(() => document.querySelector("#model-hint").innerText.startsWith("7.62 B"));
    await page.getByRole("button", { name: "Forget it" }).click();
    await eventually(async () => assert.equal(await table.count(), 0));
    await close();
  });

  test(`${name}: inputs, what was measured and several files stand side by side`, async () => {
    const { page, close } = await b.open(size);
    await page.selectOption("#model", "gpt2");
    await page.fill("#seq-len", "256");
    await page.locator("#compare-panel > summary").click();
    await page.locator("#keep-inputs").click();
    await page.locator("#kept li").waitFor();
    await page.fill("#micro-batch", "2");
    const file = (id, peak) => ({
      name: `${id}.json`,
      mimeType: "application/json",
      buffer: Buffer.from(JSON.stringify({ ...MEASURED, peak })),
    });
    await page.setInputFiles("#file", [file("fp32", 90e9), file("amp", 80302646784)]);
    await eventually(async () => assert.equal(await page.locator("#kept li").count(), 3));
    const long = await tasks(page, async () => {
      await page.locator("#start-compare").click();
      await page.locator("#compare-table").waitFor({ timeout: 120_000 });
    });
    assert.ok(long.at(-1) <= 50, `the longest task took ${long.at(-1)} ms`);
    const rows = page.locator("#compare-table tbody tr");
    const heads = await rows.locator("th").allInnerTexts();
    assert.match(heads.join("\n"), /^these inputs\npredicted[^]*\ngpt2, pure_bf16, micro-batch 1 [^]*\nfp32\nmeasured[^]*\namp\nmeasured/);
    assert.match(await rows.nth(2).innerText(), /83\.8 GiB[^]*Does not fit/);
    assert.match(await page.locator("#compare-table").innerText(), /micro-batch \d+ \([^)]*samples\/s\)[^]*Fastest as it is: /);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), size.width, "the table scrolls within itself");
    await rows.nth(1).getByRole("button", { name: /^Take it over/ }).click();
    await eventually(async () => assert.equal(await page.inputValue("#micro-batch"), "1"));
    await page.locator("#compare-table .issue").first().waitFor();
    await page.getByRole("button", { name: /^Remove ?: amp$/ }).click();
    await eventually(async () => assert.equal(await page.locator("#compare-table").count(), 0));
    await page.locator("#undo").click();
    await eventually(async () => assert.equal(await page.inputValue("#micro-batch"), "2"));
    await close();
  });

  test(`${name}: what was measured of another recipe is explained, taken over, calibrated and undone`, async () => {
    const { page, close } = await b.open(size);
    await page.selectOption("#precision", { label: "AMP, autocast to BF16" });
    const before = await answer(page);
    await page.fill("#paste", JSON.stringify(MEASURED));
    const said = page.locator("#explained");
    await said.locator(".offer").waitFor({ timeout: 60_000 });
    assert.match(await said.innerText(), /Furthest off: .*Your numbers fit precision pure_bf16, not precision amp_bf16\..*explains \d+ % of the difference/s);
    // An input ends what is being worked out; the answer is for the last one.
    await page.fill("#seq-len", "1024");
    await eventually(async () => assert.match(await said.innerText(), /Working out what explains/));
    await page.fill("#seq-len", "2048");
    await said.locator(".offer").waitFor({ timeout: 60_000 });
    assert.equal(await page.locator("#other-offers .offer").count(), 0, "drawn once they are asked for");
    const all = await tasks(page, async () => {
      await said.getByRole("button", { name: /^Take it over/ }).click();
      await page.waitForFunction(() => /compared: as predicted/.test(document.querySelector("#explained")?.innerText), null, { timeout: 60_000 });
    });
    assert.ok(all.at(-1) < 50, `the longest task took ${all.at(-1)} ms`);
    assert.equal((await answer(page)).needed, 74.8);
    await page.locator("#calibrate").click();
    await page.locator("#calibration").waitFor({ timeout: 60_000 });
    assert.match(await page.locator("#calibration").innerText(), /Fitted to one measurement/);
    await page.waitForTimeout(500);
    const again = await b.open({ ...size, path: await page.evaluate(() => location.hash) });
    assert.ok(await again.page.locator("#calibration").isVisible(), "it is part of the link");
    await again.close();
    await page.locator("#remove-calibration").click();
    await eventually(async () => assert.equal(await page.locator("#calibration").count(), 0));
    for (let n = 0; n < 3; n++) await page.locator("#undo").click();
    await eventually(async () => assert.deepEqual(await answer(page), before));
    await close();
  });
}

for (const size of WIDTHS) {
  test(`a run over many lengths is replayed in the worker, ${size.name}`, async () => {
    const { page, close } = await b.open(size);
    await page.locator("#lengths-panel > summary").click();
    await page.fill("#lengths", "64, 500, 90, 333, 512, 17");
    await page.fill("#length-steps", "20");
    await page.selectOption("#batching", { label: "grouped by length (group_by_length)" });
    await page.click("#start-run");
    await page.locator("#run progress").waitFor();
    const row = page.locator("#run-rows tbody tr").first();
    await row.waitFor({ timeout: 60000 });
    assert.match(await row.textContent(), /as planned.*GiB/);
    assert.match(await page.textContent("#run-table"), /20 steps, 20 micro-batches padded to 17 to 512 tokens/);
    // The table scrolls within itself, the page never sideways.
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), size.width);
    await page.fill("#seq-len", "1024");
    await page.locator("#run-table .issue").waitFor();
    // Another one, stopped; the reader is free again.
    await page.fill("#lengths", "uniform=64..1024");
    await page.fill("#length-steps", "300");
    await page.click("#start-run");
    await page.click("#stop-run");
    await page.locator("#start-run").waitFor();
    assert.equal(await page.locator("#run-table").count(), 0);
    // The link holds the lengths.
    await page.waitForTimeout(600);
    const path = await page.evaluate(() => location.hash);
    await close();
    const again = await b.open({ ...size, path });
    await again.page.locator("#lengths-panel > summary").click();
    assert.equal(await again.page.inputValue("#lengths"), "uniform=64..1024");
    await again.close();
  });
}
