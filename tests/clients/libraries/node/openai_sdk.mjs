// The official `openai` library for JavaScript: Chat Completions and Responses.
import OpenAI, { NotFoundError } from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { forecast, model, noModel, question, run, url } from "./scenarios.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 60000 });
const messages = [{ role: "user", content: question }];
const parameters = {
  type: "object",
  properties: {
    city: { type: "string", enum: ["Tokyo", "Rome"] },
    days: { type: "integer", minimum: 1, maximum: 5 },
  },
  required: ["city", "days"],
  additionalProperties: false,
};
const tool = { type: "function", function: { name: "forecast", parameters } };
const Trip = z.object({ city: z.enum(["Tokyo", "Rome"]), nights: z.number().int().min(1).max(9) });

await run({
  async chat() {
    const answer = await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 30 });
    return { text: answer.choices[0].message.content, tokens: answer.usage.completion_tokens };
  },
  async stream() {
    const options = { stream: true, stream_options: { include_usage: true } };
    const chunks = await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 30, ...options });
    let text = "";
    let tokens = null;
    for await (const chunk of chunks) {
      for (const choice of chunk.choices) text += choice.delta.content ?? "";
      tokens = chunk.usage?.completion_tokens ?? tokens;
    }
    return { text, tokens };
  },
  async tools() {
    const first = await client.chat.completions.create({
      model, messages, tools: [tool], tool_choice: "required", max_tokens: 200, parallel_tool_calls: false,
    });
    const { message } = first.choices[0];
    const [call] = message.tool_calls;
    const wanted = JSON.parse(call.function.arguments);
    const result = { role: "tool", tool_call_id: call.id, content: forecast(wanted) };
    const second = await client.chat.completions.create({
      model, messages: [...messages, message, result], tools: [tool], tool_choice: "none", max_tokens: 20,
    });
    return { calls: [wanted], text: second.choices[0].message.content };
  },
  async structured() {
    const answer = await client.chat.completions.parse({
      model, messages, max_tokens: 200, response_format: zodResponseFormat(Trip, "trip"),
    });
    return answer.choices[0].message.parsed;
  },
  async cancel() {
    const chunks = await client.chat.completions.create({
      model, messages, max_tokens: 1500, stream: true, ignore_eos: true,
    });
    for await (const _ of chunks) break;
    return {};
  },
  async error() {
    try {
      await client.chat.completions.create({ model: noModel, messages });
    } catch (error) {
      if (error instanceof NotFoundError) return { status: error.status, text: error.message };
      throw error;
    }
  },
  async responses() {
    const wanted = { type: "function", name: "forecast", parameters, strict: true };
    const first = await client.responses.create({
      model, input: question, tools: [wanted], tool_choice: "required", max_output_tokens: 200, parallel_tool_calls: false,
    });
    const call = first.output.find((item) => item.type === "function_call");
    const result = { type: "function_call_output", call_id: call.call_id, output: forecast(JSON.parse(call.arguments)) };
    const input = [{ role: "user", content: question }, ...first.output, result];
    const second = await client.responses.create({ model, input, max_output_tokens: 20 });
    return { calls: [JSON.parse(call.arguments)], text: second.output_text };
  },
});
