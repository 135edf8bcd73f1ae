// Sends the admin token to the gateway, which responds with a session cookie.

const form = /** @type {HTMLFormElement} */ (document.getElementById("login"));
const token = /** @type {HTMLInputElement} */ (document.getElementById("token"));
const result = /** @type {HTMLElement} */ (document.getElementById("login-result"));

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  result.textContent = "";
  try {
    const response = await fetch("/api/v1/login", { method: "POST", body: JSON.stringify({ token: token.value.trim() }) });
    if (response.ok) {
      location.replace("/");
      return;
    }
    result.textContent = (await response.text()).trim();
  } catch {
    result.textContent = "The gateway does not respond.";
  }
  token.select();
});
