// Starts the program and says so when it does not start. Plain JavaScript: it must run where the program cannot.
(function () {
  "use strict";
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
    var first, imports;
    var entered = 0;
    partial = true;
    root.dataset.partial = "";
    // The start has no clock: it would go different ways by it, and the first half knows one.
    Date.now = function () {
      return 0;
    };

    function link(module) {
      if (!partial) return;
      var own = new Proxy(first, {
        // Functions of the first half by their places in the table.
        get: function (_, name) {
          return isNaN(name) ? first[name] : first.table.get(Number(name));
        },
      });
      new WebAssembly.Instance(module, Object.assign({ first: own }, imports));
      partial = false;
      delete root.dataset.partial;
      // Not from within the program, which may be what waited.
      setTimeout(function () {
        dispatchEvent(new Event("vram-budget:whole"));
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
  try {
    if (tag) {
      var at = function (name) {
        return new URL(tag.getAttribute(name), document.baseURI).href;
      };
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
      wasm_bindgen({ module_or_path: bytes }).catch(failed);
    }
  } catch (error) {
    failed(error);
  }
})();
