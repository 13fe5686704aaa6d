// The `openai` SDK in TypeScript: a talk of two turns, the second one streamed.
//
//     npm install openai
//     node examples/client_openai.ts        (Node 24 runs TypeScript as it is)
//
// The address and the key may also come from OPENAI_BASE_URL and OPENAI_API_KEY.
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: process.env.OPENAI_BASE_URL ?? "http://127.0.0.1:30000/v1",
  apiKey: process.env.OPENAI_API_KEY ?? "none",
});
const model = "embedded";
const talk: OpenAI.ChatCompletionMessageParam[] = [{ role: "user", content: "What is tea?" }];

const first = await client.chat.completions.create({ model, messages: talk, max_tokens: 32 });
console.log("tea:", first.choices[0].message.content);

talk.push(first.choices[0].message);
talk.push({ role: "user", content: "Please answer in under ten words." }); // this is what it is trained on
process.stdout.write("shorter: ");
for await (const chunk of await client.chat.completions.create({ model, messages: talk, max_tokens: 32, stream: true })) {
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}
console.log();
