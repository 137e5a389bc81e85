// Starts the program and says so when it does not start. Plain JavaScript: it must run where the program cannot.
(function () {
  "use strict";
  // The same script begins the worker that reads long files and works out answers.
  if (typeof document === "undefined") return readFiles();
  var root = document.documentElement;
  try {
    // The stored theme before the first paint; the program keeps it from then on.
    var theme = localStorage.getItem("vram-budget.theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch (_) {
    // Storage may be forbidden; the system's theme then holds.
  }

  var started = false;
  function failed(reason) {
    if (started) return;
    document.getElementById("boot-reason").textContent = String(reason);
    document.getElementById("boot-failed").hidden = false;
    var wait = document.getElementById("boot-wait");
    if (wait) wait.hidden = true;
  }
  addEventListener("vram-budget:started", function () {
    started = true;
    document.getElementById("boot-failed").hidden = true;
  });

  // The program is in two halves (scripts/split.mjs). The first can draw the first answer and nothing else; the rest is
  // fetched then. What enters the program earlier, such as an input, waits for it. `data-partial` is on the root until
  // it is there, and then `vram-budget:whole` is sent.
  var partial = false;
  var drawn = false;
  var now = Date.now;
  function inTwoHalves(url) {
    var program, first, imports;
    var entered = 0;
    partial = true;
    root.dataset.partial = "";
    // The start has no clock: it would go different ways by it, and the first half knows one.
    Date.now = function () {
      return 0;
    };

    function link(module) {
      if (!partial) return;
      join(WebAssembly.Instance, module, first, imports);
      partial = false;
      delete root.dataset.partial;
      // Not from within the program, which may be what waited.
      setTimeout(function () {
        dispatchEvent(new Event("vram-budget:whole"));
        employ(tag.src, { first: program, rest: module, glue: at("data-js") });
      });
    }
    function load() {
      return fetch(url)
        .then(function (response) {
          if (!response.ok) throw new Error(url + ": " + response.status);
          return response.arrayBuffer();
        })
        .then(function (bytes) {
          return WebAssembly.compile(bytes);
        })
        .then(link);
    }
    function loadInTime() {
      load().catch(function () {
        setTimeout(loadInTime, 3000);
      });
    }
    function loadNow() {
      try {
        var request = new XMLHttpRequest();
        request.open("GET", url, false);
        request.overrideMimeType("text/plain; charset=x-user-defined");
        request.send();
        if (request.status !== 200) throw new Error(url + ": " + request.status);
        var bytes = Uint8Array.from(request.responseText, function (char) {
          return char.charCodeAt(0);
        });
        link(new WebAssembly.Module(bytes));
      } catch (error) {
        broken(error);
        throw error;
      }
    }
    // What enters the program once it has drawn its first answer finds the rest there.
    function guarded(call) {
      return function () {
        if (partial && drawn && !entered) loadNow();
        entered++;
        try {
          return call.apply(null, arguments);
        } catch (error) {
          // The start met what the first half does not have: with an address inside the page both halves come first.
          if (partial && !drawn) {
            location.hash = "job";
            location.reload();
          }
          throw error;
        } finally {
          entered--;
        }
      };
    }
    // The glue knows nothing of halves: what it starts is guarded.
    ["instantiate", "instantiateStreaming"].forEach(function (name) {
      var real = WebAssembly[name];
      if (!real) return;
      WebAssembly[name] = function (source, given) {
        return real.call(WebAssembly, source, given).then(function (made) {
          imports = given;
          program = made.module;
          first = made.instance.exports;
          var exports = {};
          for (var name in first) exports[name] = typeof first[name] === "function" ? guarded(first[name]) : first[name];
          var halves = { module: made.module, instance: { exports: exports } };
          // A link may ask for anything: both halves are there before it is read.
          if (location.hash.length > 1) return load().then(function () { return halves; });
          addEventListener("vram-budget:started", function () {
            requestAnimationFrame(function () {
              setTimeout(loadInTime);
            });
          });
          return halves;
        });
      };
    });
  }
  // Puts the rest of a program to its first half, whose functions it finds by their places in the table.
  function join(Instance, rest, first, imports) {
    var own = new Proxy(first, {
      get: function (_, name) {
        return isNaN(name) ? first[name] : first.table.get(Number(name));
      },
    });
    new Instance(rest, Object.assign({ first: own }, imports));
  }

  // Long files are read in a worker, which has a program of its own from the same modules; `vram-budget:read` gives it
  // one, or stops it. What is asked about a measurement is worked out there too: `vram-budget:ask`. What it says is sent
  // as `vram-budget:heard`. `data-reader` is on the root while it is there.
  function employ(url, program) {
    var worker;
    var job = 0;
    var turn = 0;
    function begin() {
      worker = new Worker(url);
      worker.onmessage = function (event) {
        if (event.data.ready) root.dataset.reader = "";
        else if (event.data.turn ? event.data.turn === turn : event.data.job === job) dispatchEvent(new CustomEvent("vram-budget:heard", { detail: event.data }));
      };
      worker.onerror = function (event) {
        event.preventDefault();
        dispatchEvent(new CustomEvent("vram-budget:heard", { detail: { failed: event.message } }));
        worker.terminate();
        // One that cannot begin is not begun for ever.
        if (!("reader" in root.dataset)) return;
        delete root.dataset.reader;
        begin();
      };
      worker.postMessage(program);
    }
    // Of two questions the later one is answered alone; none takes back the last.
    addEventListener("vram-budget:ask", function (event) {
      worker.postMessage({ turn: ++turn, question: event.detail });
    });
    addEventListener("vram-budget:read", function (event) {
      worker.postMessage({ job: ++job, blob: event.detail });
    });
    begin();
  }

  // The worker's side: one file after the other. One that is no longer wanted is left at its next piece, so that a new
  // worker, and what it fetches, is not needed.
  function readFiles() {
    var LIMIT = Math.pow(2, 31);
    var wanted, before, ended, begun, turn, answer;
    addEventListener("vram-budget:found", function (event) {
      if (ended) postMessage({ job: ended, found: event.detail });
      ended = 0;
    });
    addEventListener("vram-budget:so-far", function (event) {
      postMessage({ job: ended, read: event.detail[0], total: event.detail[1], some: event.detail[2] });
    });
    onmessage = function (event) {
      var given = event.data;
      if (!before) {
        before = begun = begin(given);
        return;
      }
      if (given.turn) {
        turn = given.turn;
        if (given.question) begun.then(function () { study(given); });
        return;
      }
      wanted = given.job;
      before = before
        .then(function () {
          if (!given.blob || given.job !== wanted) return;
          return (typeof given.blob === "string" ? run : read)(given.job, given.blob);
        })
        .catch(function (error) {
          postMessage({ job: given.job, failed: String(error) });
        });
    };
    addEventListener("vram-budget:answered", function (event) {
      answer = event.detail;
    });
    // A plan after the other, and what comes in between is heard.
    function study(given) {
      if (given.turn !== turn) return;
      answer = null;
      dispatchEvent(new CustomEvent("vram-budget:question", { detail: given.question }));
      (function walk() {
        if (given.turn !== turn) return;
        for (var end = Date.now() + 30; !answer && Date.now() < end; ) dispatchEvent(new CustomEvent("vram-budget:walk"));
        if (answer) postMessage({ turn: given.turn, answered: answer });
        else setTimeout(walk);
      })();
    }
    function begin(program) {
      var Own = WebAssembly.Instance;
      WebAssembly.Instance = function (module, imports) {
        var made = new Own(module, imports);
        if (program.rest) join(Own, program.rest, made.exports, imports);
        return made;
      };
      return Promise.resolve(program.glue ? import(program.glue) : wasm_bindgen).then(function (glue) {
        glue.initSync({ module: program.first });
        postMessage({ ready: true });
      });
    }
    // A plan's run over many lengths, in slices.
    function run(job, plan) {
      ended = job;
      dispatchEvent(new CustomEvent("vram-budget:run", { detail: plan }));
      return more();
      function more() {
        if (!ended) return;
        if (job !== wanted) {
          ended = 0;
          dispatchEvent(new CustomEvent("vram-budget:run", { detail: "" }));
          return;
        }
        dispatchEvent(new CustomEvent("vram-budget:more"));
        return new Promise(function (go) {
          setTimeout(go);
        }).then(more);
      }
    }
    function read(job, blob) {
      var packed, reader;
      var count = 0;
      var told = 0;
      function tell() {
        told = Date.now();
        postMessage({ job: job, read: String(count), total: packed ? undefined : String(blob.size) });
      }
      // What is found in a file that is not read to its end is not said.
      function end(whole) {
        ended = whole && job;
        dispatchEvent(new CustomEvent("vram-budget:end"));
      }
      function next() {
        return reader.read().then(function (piece) {
          if (piece.done) {
            tell();
            return end(true);
          }
          count += piece.value.length;
          if (job !== wanted || count > LIMIT) {
            reader.cancel();
            end(false);
            if (count > LIMIT) throw new Error("larger than 2 GiB");
            return;
          }
          dispatchEvent(new CustomEvent("vram-budget:piece", { detail: piece.value }));
          if (Date.now() - told > 100) tell();
          return next();
        });
      }
      return blob.slice(0, 2).arrayBuffer().then(function (head) {
        var start = new Uint8Array(head);
        packed = start[0] === 0x1f && start[1] === 0x8b;
        var stream = blob.stream();
        reader = (packed ? stream.pipeThrough(new DecompressionStream("gzip")) : stream).getReader();
        return next();
      });
    }
  }
  // The rest did not come when it was needed, and the program stands where it called it.
  function broken(error) {
    document.getElementById("panic-link").textContent = location.href;
    document.getElementById("panic-message").textContent = String(error);
    document.getElementById("panic-again").href = location.href;
    document.getElementById("app").inert = true;
    document.getElementById("panic").hidden = false;
  }
  setTimeout(function () {
    failed("it has not started after 20 seconds");
  }, 20000);

  var tag = document.querySelector("script[data-js]");
  function at(name) {
    return new URL(tag.getAttribute(name), document.baseURI).href;
  }
  try {
    if (tag) {
      if (tag.hasAttribute("data-rest")) inTwoHalves(at("data-rest"));
      import(at("data-js"))
        .then(function (glue) {
          return glue.default({ module_or_path: at("data-wasm") });
        })
        .then(function () {
          // The start ends with its microtasks, which are over by now; nothing else comes between them.
          drawn = true;
          Date.now = now;
        })
        .catch(failed);
    } else {
      // The single file: the program is in the page.
      var text = atob(document.getElementById("wasm").textContent.trim());
      var bytes = new Uint8Array(text.length);
      for (var i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
      var boot = document.currentScript;
      var texts = [boot.previousElementSibling.textContent, "\n", boot.textContent];
      WebAssembly.compile(bytes)
        .then(function (program) {
          return wasm_bindgen({ module_or_path: program }).then(function () {
            employ(URL.createObjectURL(new Blob(texts, { type: "text/javascript" })), { first: program });
          });
        })
        .catch(failed);
    }
  } catch (error) {
    failed(error);
  }
})();
