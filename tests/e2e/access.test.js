// For everyone: axe finds nothing, everything works by keyboard, nothing overflows, everything can be hit.
import assert from "node:assert/strict";
import { test } from "node:test";
import { AXE, WIDTHS, browser, eventually, openAnswer } from "./browser.js";

const b = browser();
const TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];

async function violations(page) {
  await page.addScriptTag({ path: AXE });
  return page.evaluate(async (tags) => {
    const { violations } = await axe.run(document, { runOnly: tags });
    return violations.map((v) => `${v.id}: ${v.nodes.map((n) => `${n.target} ${n.failureSummary}`).join(" | ")}`);
  }, TAGS);
}

const STATES = {
  example: async () => {},
  "wrong inputs": async (page) => {
    await page.fill("#seq-len", "20x");
    await page.fill("#micro-batch", "0");
  },
  "everything open": async (page) => {
    await page.evaluate(() => document.querySelectorAll("details").forEach((d) => (d.open = true)));
    await page.locator("#bill-table .cell").nth(13).click();
    await page.locator("#paste-config").click();
    await page.selectOption("#gpu", { label: "My own card…" });
    await openAnswer(page);
  },
  measured: async (page) => {
    await page.getByRole("button", { name: "measurement document" }).click();
    await page.fill("#paste", "garbage");
  },
  explained: async (page) => {
    await page.getByRole("button", { name: "out-of-memory message" }).click();
    await page.locator("#measured-status .cause").first().waitFor();
  },
  "which unit": async (page) => {
    await page.fill("#paste", '{"base": 1.5, "forward_delta": 2, "backward_delta": 1, "step_delta": 3, "peak": 9}');
  },
};

for (const { name, ...size } of WIDTHS) {
  for (const scheme of ["light", "dark"]) {
    for (const [state, arrange] of Object.entries(STATES)) {
      test(`axe: ${state}, ${name}, ${scheme}`, async () => {
        // axe is injected as an inline script, which the page's own policy refuses.
        const { page, close } = await b.open({ ...size, scheme, bypassCSP: true });
        await arrange(page);
        await page.waitForTimeout(300);
        assert.deepEqual(await violations(page), []);
        await close();
      });
    }
  }
}

test("nothing overflows from 320 px up, whatever is open", async () => {
  for (const width of [320, 390, 640, 900, 1024, 1280]) {
    const { page, close } = await b.open({ width });
    for (const arrange of Object.values(STATES).slice(0, 3)) {
      await arrange(page);
      await page.waitForTimeout(100);
      const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.equal(over, 0, `${width} px`);
    }
    await close();
  }
});

test("every target is at least 24 px high and wide", async () => {
  for (const { name, ...size } of WIDTHS) {
    const { page, close } = await b.open(size);
    await STATES["everything open"](page);
    await page.locator("#config").waitFor();
    const small = await page.evaluate(() =>
      [...document.querySelectorAll("a, button, input, select, textarea, summary")]
        .filter((e) => e.checkVisibility() && !e.classList.contains("skip"))
        .map((e) => [e.labels?.[0]?.classList.contains("radio") ? e.labels[0] : e, e])
        .map(([box, e]) => [box.getBoundingClientRect(), e])
        // A word inside a sentence is exempt.
        .filter(([r, e]) => (r.width < 24 || r.height < 24) && !e.matches("p .term, p .plain"))
        .map(([r, e]) => `${e.id || e.className || e.innerText} ${r.width}×${r.height}`),
    );
    assert.deepEqual(small, [], name);
    await close();
  }
});

test("the keyboard reaches everything, with the focus in sight", async () => {
  const { page, close } = await b.open();
  // What is still being worked out moves what is below it.
  await page.waitForFunction(() => !document.querySelector("[aria-busy=true]"));
  const seen = [];
  for (let i = 0; i < 90; i++) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => {
      const e = document.activeElement;
      if (!e || e === document.body) return null;
      const r = e.getBoundingClientRect();
      const style = getComputedStyle(e);
      const top = document.elementFromPoint(r.x + r.width / 2, r.y + Math.min(r.height / 2, 10));
      return {
        name: e.id || e.innerText,
        ring: style.outlineStyle !== "none",
        inView: r.bottom > 0 && r.top < innerHeight,
        covered: !(top && (e.contains(top) || top.contains(e) || e.labels?.[0]?.contains(top))),
      };
    });
    if (!at) break;
    assert.ok(at.ring, `${at.name} shows its focus`);
    assert.ok(at.inView && !at.covered, `${at.name} is in sight`);
    seen.push(at.name);
  }
  for (const id of ["theme", "share", "model", "find-model", "gpu", "precision", "seq-len", "checkpointing", "paste", "measured-file"]) {
    assert.ok(seen.includes(id), `${id} is reached: ${seen}`);
  }
  await close();
});

test("terms explain themselves by keyboard", async () => {
  const { page, close } = await b.open();
  for (const [at, term] of [[".sums", "Reserved"], ["#bill-table", "Activations"], ["#job", "What is micro-batch?"]]) {
    const button = page.locator(at).getByRole("button", { name: term, exact: true });
    await button.focus();
    await page.keyboard.press("Enter");
    const id = await button.getAttribute("popovertarget");
    assert.ok(await page.locator(`#${id}`).isVisible(), term);
    const [word, said] = [await button.boundingBox(), await page.locator(`#${id}`).boundingBox()];
    assert.ok(Math.abs(said.y - word.y) < 150, `${term} is explained beside it`);
    await page.keyboard.press("Escape");
    assert.ok(!(await page.locator(`#${id}`).isVisible()), term);
  }
  await close();
});

test("the verdict is announced once typing rests, not at every key", async () => {
  const { page, close } = await b.open();
  const said = await page.evaluate(() => {
    globalThis.said = [];
    new MutationObserver(() => globalThis.said.push(document.querySelector("#live").textContent)).observe(document.querySelector("#live"), { childList: true, subtree: true, characterData: true });
  });
  assert.equal(said, undefined);
  await page.locator("#seq-len").fill("");
  await page.locator("#seq-len").pressSequentially("4096", { delay: 50 });
  await page.waitForFunction(() => globalThis.said.length > 0);
  await page.waitForTimeout(1200);
  const all = await page.evaluate(() => globalThis.said);
  assert.equal(all.length, 1, JSON.stringify(all));
  assert.match(all[0], /^Does not fit: 7\d\.\d GiB of 23\.\d GiB$/);
  await close();
});

test("the theme follows the system, can be chosen, and is kept", async () => {
  const { page, close } = await b.open({ scheme: "dark" });
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.equal(await paper(), "rgb(20, 23, 27)");
  await page.locator("#theme").click();
  await eventually(async () => assert.equal(await paper(), "rgb(255, 255, 255)"));
  await page.reload();
  await page.locator("#verdict").waitFor();
  await eventually(async () => assert.equal(await paper(), "rgb(255, 255, 255)"));
  await close({ expected: [/^request after load/] });
});

test("it prints without its controls", async () => {
  const { page, close } = await b.open();
  await page.emulateMedia({ media: "print" });
  assert.ok(!(await page.locator("nav").isVisible()));
  assert.ok(await page.locator("#verdict").isVisible());
  assert.ok(await page.locator("#bill-table").isVisible());
  await close();
});
