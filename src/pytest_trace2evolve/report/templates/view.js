(() => {
  "use strict";
  const list = document.getElementById("live");
  if (!list) return;
  let running = 0;
  new EventSource("/events").addEventListener("message", (event) => {
    const sessions = JSON.parse(event.data);
    if (sessions.length < running) location.reload();
    running = sessions.length;
    document.getElementById("running").hidden = !running;
    list.replaceChildren(...sessions.map((session) => {
      const item = document.createElement("li");
      const done = session.passed + session.failed + session.lost;
      item.textContent = `${session.run}: ${done} simulations, ${session.passed} passed, ${session.failed} failed, ${session.lost} lost`;
      return item;
    }));
  });
})();
