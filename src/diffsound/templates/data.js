
document.getElementById("find").addEventListener("input", event => {
  const wanted = event.target.value.toLowerCase();
  for (const clip of document.querySelectorAll(".clip"))
    clip.hidden = !clip.textContent.toLowerCase().includes(wanted);
});
