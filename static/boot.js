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
  setTimeout(function () {
    failed("it has not started after 20 seconds");
  }, 20000);

  var tag = document.querySelector("script[data-js]");
  try {
    if (tag) {
      var at = function (name) {
        return new URL(tag.getAttribute(name), document.baseURI).href;
      };
      import(at("data-js"))
        .then(function (glue) {
          return glue.default({ module_or_path: at("data-wasm") });
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
