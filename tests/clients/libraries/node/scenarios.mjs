// Runs the scenarios of one client library against a server and prints a JSON line for each.
// `node PROGRAM.mjs URL MODEL`: URL without /v1.
export const [url, model] = process.argv.slice(2);
export const question = "What is the capital of Japan?";
export const noModel = "no-such-model";
export const forecast = ({ city, days }) => `${city}: ${days} days of rain`;

export async function run(scenarios) {
  for (const [scenario, play] of Object.entries(scenarios)) {
    let line = { scenario };
    try {
      line.result = await play();
    } catch (error) {
      line.failure = `${error.stack ?? error}`;
    }
    console.log(JSON.stringify(line));
  }
}
