
// What judges said of an edit, in words. A row: place of the metric, value, why (""), what was said ({}).
{
  const reply = (said) => (typeof said === "number" ? browser.fixed(said, 3) : said && said.error ? said.error : JSON.stringify(said));
  const decimal = (x) => (Number.isInteger(x) ? x + ".0" : String(x));
  function evidence(said) {
    const parts = "answer" in said ? ["answer: " + JSON.stringify(said.answer)] : [];
    for (const [key, name] of [["p_yes", "P(yes)"], ["p_no", "P(no)"]]) {
      if (typeof said[key] === "number") parts.push(name + " " + browser.fixed(said[key], 3));
    }
    if ("score" in said) parts.push("box score " + browser.fixed(said.score, 3) + " (threshold " + decimal(said.threshold) + ")");
    for (const [key, place] of [["before", "sample"], ["after", "edit"]]) {
      const replies = Object.entries(said[key] || {}).map(([word, one]) => word + " " + reply(one));
      if (replies.length) parts.push("in the " + place + ": " + replies.join(", "));
    }
    if (said.question) parts.push("asked: " + said.question);
    return parts.join(" · ");
  }
  browser.tell(([place, number, reason = "", said = {}], member, sample) => {
    const measure = browser.measures[place], known = browser.value(member, place, sample);
    return [measure.title, browser.show(measure, typeof known === "string" ? known : number), reason, evidence(said)];
  });
}
