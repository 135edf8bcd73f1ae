// Shows the token to the listener, which lends this browser a session in its place.

const form = /** @type {HTMLFormElement} */ (document.getElementById("login"));
const token = /** @type {HTMLInputElement} */ (document.getElementById("token"));
const result = /** @type {HTMLElement} */ (document.getElementById("login-result"));

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  result.textContent = "";
  try {
    const answer = await fetch("/api/v1/login", { method: "POST", body: JSON.stringify({ token: token.value.trim() }) });
    if (answer.ok) {
      location.replace("/");
      return;
    }
    result.textContent = (await answer.text()).trim();
  } catch {
    result.textContent = "The gateway does not answer.";
  }
  token.select();
});
