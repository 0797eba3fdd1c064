// The `ai` SDK with its provider for OpenAI-compatible servers.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { forecast, model, noModel, question, run, url } from "./scenarios.mjs";

const provider = createOpenAICompatible({
  name: "tenonry", baseURL: `${url}/v1`, apiKey: "none", supportsStructuredOutputs: true, includeUsage: true,
});
const asked = { model: provider(model), prompt: question, maxRetries: 0 };
const Place = z.object({ city: z.enum(["Tokyo", "Rome"]), days: z.number().int().min(1).max(5) });

await run({
  async chat() {
    const answer = await generateText({ ...asked, temperature: 0, maxOutputTokens: 30 });
    return { text: answer.text, tokens: answer.usage.outputTokens };
  },
  async stream() {
    const running = streamText({ ...asked, temperature: 0, maxOutputTokens: 30 });
    let text = "";
    for await (const piece of running.textStream) text += piece;
    return { text, tokens: (await running.usage).outputTokens };
  },
  async tools() {
    const calls = [];
    const weather = tool({
      description: "Weather of a city.",
      inputSchema: Place,
      execute: async (wanted) => {
        calls.push(wanted);
        return forecast(wanted);
      },
    });
    const answer = await generateText({
      ...asked,
      tools: { forecast: weather },
      maxOutputTokens: 200,
      stopWhen: stepCountIs(2),
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
    });
    return { calls, text: answer.text };
  },
  async structured() {
    const schema = z.object({ city: z.enum(["Tokyo", "Rome"]), nights: z.number().int().min(1).max(9) });
    const answer = await generateObject({ ...asked, schema, maxOutputTokens: 200 });
    return answer.object;
  },
  async cancel() {
    const aborter = new AbortController();
    const running = streamText({
      ...asked, maxOutputTokens: 1500, abortSignal: aborter.signal,
      providerOptions: { tenonry: { ignore_eos: true } },
    });
    for await (const _ of running.textStream) {
      aborter.abort();
      break;
    }
    return {};
  },
  async error() {
    try {
      await generateText({ ...asked, model: provider(noModel) });
    } catch (error) {
      if (APICallError.isInstance(error)) return { status: error.statusCode, text: error.message };
      throw error;
    }
  },
});
