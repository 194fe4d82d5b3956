// A button on each block of code that copies it; prompts and the answers of a console are left out.
document.addEventListener("DOMContentLoaded", function () {
  if (!navigator.clipboard) return; // a page that was opened without https
  document.querySelectorAll(".codehilite").forEach(function (block) {
    var code = block.querySelector("pre");
    if (!code) return;
    var button = document.createElement("button");
    button.type = "button";
    button.className = "copy-code";
    button.textContent = "Copy";
    button.addEventListener("click", function () {
      var lines = code.textContent.split("\n");
      var commands = lines.filter(function (line) { return line.indexOf("$ ") === 0; });
      if (commands.length) lines = commands.map(function (line) { return line.slice(2); });
      navigator.clipboard.writeText(lines.join("\n")).then(
        function () { button.textContent = "Copied"; },
        function () { button.textContent = "Not copied"; }
      );
      setTimeout(function () { button.textContent = "Copy"; }, 1500);
    });
    block.appendChild(button);
  });
});
