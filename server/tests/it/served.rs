//! `counterfoil serve` in a process of its own, and who calls it: over HTTP with a token, and over stdio. Messages are written
//! by hand, so that they show what is really sent.

use crate::harness::*;
use crate::world::*;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// The protocol's revision that begins with `initialize`.
pub const INITIALIZED: &str = "2025-11-25";
/// The one in which each request says all that is needed.
pub const STATELESS: &str = "2026-07-28";

impl World {
    pub fn tokens(&self) -> PathBuf {
        self.file("tokens.toml")
    }

    /// A new token for a caller such as `ada@acme`, under the name.
    pub fn token(&self, name: &str, caller: &str, permissions: &str) -> String {
        self.token_with(name, caller, permissions, &[])
    }

    pub fn token_with(&self, name: &str, caller: &str, permissions: &str, arguments: &[&str]) -> String {
        let mut command = counterfoil(&["--as", caller, "--allow", permissions, "token", "new", "--name", name]);
        let ran = Ran::of(command.arg("--tokens").arg(self.tokens()).args(arguments));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stdout.trim_end().to_owned()
    }

    /// The program on this database, as nobody.
    pub fn nobody(&self, component: &Path, arguments: &[&str]) -> Command {
        let mut command = counterfoil(arguments);
        command.env("RUST_LOG", "counterfoil=debug");
        command.arg("--component").arg(component).arg("--db").arg(self.path());
        command
    }

    /// The command of a server over HTTP, on a free port, for those who have a token.
    pub fn http_with(&self, component: &Path, arguments: &[&str]) -> Command {
        let mut command = self.nobody(component, &[]);
        command.args(["serve", "--http", "127.0.0.1:0", "--tokens"]).arg(self.tokens()).args(arguments);
        command
    }

    pub fn serve(&self, arguments: &[&str]) -> Server {
        Server::start(self, &mut self.http_with(component(), arguments))
    }

    /// With the component whose tools trap.
    pub fn serve_test_tools(&self, arguments: &[&str]) -> Server {
        Server::start(self, &mut self.http_with(test_component(), arguments))
    }

    /// A server over stdio, for Ada.
    pub fn pipe(&self, revision: &'static str, arguments: &[&str]) -> Pipe {
        self.pipe_with(component(), revision, arguments)
    }

    pub fn pipe_with(&self, component: &Path, revision: &'static str, arguments: &[&str]) -> Pipe {
        let mut command = self.program_with(component, &[&["serve"], arguments].concat());
        command.env("RUST_LOG", "counterfoil=debug");
        Pipe::start(self, &mut command, revision)
    }

    /// What servers have logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.file("serve.log")).unwrap()
    }

    /// Waits until the servers have logged an event so often.
    #[track_caller]
    pub fn until_logged(&self, event: &str, times: usize) {
        until_or(|| (self.log().matches(event).count() >= times).then_some(()), || format!("{event}: {}", self.log()));
    }

    fn log_file(&self) -> File {
        File::options().create(true).append(true).open(self.file("serve.log")).unwrap()
    }
}

/// In the log: a call has arrived.
pub const ARRIVED: &str = ": call call=";
/// In the log: a call is made.
pub const ATTEMPT: &str = ": attempt call=";

pub struct Server {
    pub process: Process,
    pub client: Client,
}

impl Server {
    #[track_caller]
    pub fn start(world: &World, command: &mut Command) -> Server {
        let mut process = Process::start(command.stdout(Stdio::piped()).stderr(world.log_file()));
        let mut line = String::new();
        BufReader::new(process.pipes().1.unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on http://").and_then(|rest| rest.strip_suffix("/mcp\n"));
        let Some(address) = address else { panic!("{line:?} {}", world.log()) };
        Server { process, client: Client::at(address.parse().unwrap()) }
    }

    pub fn caller(&self, token: &str) -> Caller {
        self.caller_of(STATELESS, token)
    }

    pub fn caller_of(&self, revision: &'static str, token: &str) -> Caller {
        Caller { client: self.client, token: token.to_owned(), revision }
    }

    /// Tells it to stop, and waits.
    #[track_caller]
    pub fn stop(&mut self) {
        self.process.signal("TERM");
        assert_eq!(self.process.wait().code(), Some(0));
    }
}

/// Whoever asks, and is answered by a JSON-RPC message.
pub trait Agent {
    fn ask(&mut self, method: &str, params: Value) -> Value;

    #[track_caller]
    fn call(&mut self, tool: &str, arguments: &Value) -> Told {
        Told::of(&self.ask("tools/call", json!({ "name": tool, "arguments": arguments })))
    }
}

/// The answer to a call of a tool.
#[derive(Debug)]
pub struct Told {
    pub is_error: bool,
    /// The first text, for a model.
    pub text: String,
    pub reply: Value,
}

impl Told {
    #[track_caller]
    pub fn of(message: &Value) -> Told {
        let result = &message["result"];
        let content = result["content"].as_array().unwrap_or_else(|| panic!("{message}"));
        let [text, json] = content.as_slice() else { panic!("{message}") };
        assert_eq!((&text["type"], &json["type"]), (&json!("text"), &json!("text")), "{message}");
        let json: Value = serde_json::from_str(json["text"].as_str().unwrap()).unwrap();
        assert_eq!(json, result["structuredContent"], "{message}");
        Told {
            is_error: result["isError"] == true,
            text: text["text"].as_str().unwrap().to_owned(),
            reply: result["structuredContent"].clone(),
        }
    }

    /// Whether it is an error, `replayed`, and the code of a refusal.
    pub fn outcome(&self) -> (bool, bool, &str) {
        (self.is_error, self.reply["replayed"] == true, self.reply["code"].as_str().unwrap_or_default())
    }
}

pub const FRESH: (bool, bool, &str) = (false, false, "");
pub const REPLAYED: (bool, bool, &str) = (false, true, "");

/// The message of a request, in a revision.
pub fn message(revision: &str, id: usize, method: &str, mut params: Value) -> Value {
    if revision == STATELESS {
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(STATELESS);
        params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({ "name": "test", "version": "1" });
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    }
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

pub fn initialize() -> Value {
    let client = json!({ "name": "test", "version": "1" });
    json!({ "protocolVersion": INITIALIZED, "capabilities": {}, "clientInfo": client })
}

/// Over HTTP, with a token; a connection for each request.
#[derive(Clone)]
pub struct Caller {
    pub client: Client,
    pub token: String,
    pub revision: &'static str,
}

impl Caller {
    pub fn send(&self, method: &str, params: Value) -> io::Result<TcpStream> {
        let name = params["name"].as_str().unwrap_or_default().to_owned();
        let body = message(self.revision, 1, method, params).to_string();
        self.post(&[("Mcp-Method", method), ("Mcp-Name", &name)], &body)
    }

    /// With what every request has beside the headers named.
    pub fn post(&self, headers: &[(&str, &str)], body: &str) -> io::Result<TcpStream> {
        let authorization = format!("Bearer {}", self.token);
        let all = [
            ("Authorization", authorization.as_str()),
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
            ("MCP-Protocol-Version", self.revision),
        ];
        let headers: Vec<_> = all.iter().chain(headers).copied().filter(|(_, value)| !value.is_empty()).collect();
        self.client.send("POST", "/mcp", &headers, body)
    }

    pub fn send_call(&self, tool: &str, arguments: &Value) -> io::Result<TcpStream> {
        self.send("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    pub fn answer(&self, method: &str, params: Value) -> io::Result<Answer> {
        Answer::read(&self.send(method, params)?)
    }

    /// The status of a call that makes a note, and its answer.
    pub fn note(&self, key: &str) -> Answer {
        let params = json!({ "name": "create_note", "arguments": note(key, "hello") });
        self.answer("tools/call", params).unwrap()
    }

    pub fn get(&self, path: &str) -> Answer {
        let authorization = format!("Bearer {}", self.token);
        self.client.request("GET", path, &[("Authorization", &authorization)], "").unwrap()
    }

    /// A figure of `/metrics`, by its name and labels as they are written; 0 if it is not there.
    #[track_caller]
    pub fn metric(&self, name: &str) -> u64 {
        let answer = self.get("/metrics");
        assert_eq!(answer.status, 200, "{}", answer.body);
        let figure = answer.body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        figure.map_or(0, |figure| figure.parse().unwrap())
    }
}

impl Agent for Caller {
    #[track_caller]
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let answer = self.answer(method, params).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
        messages(&answer).pop().expect("an answer")
    }
}

/// One message, or those of an event stream, of which the last is the answer.
#[track_caller]
pub fn messages(answer: &Answer) -> Vec<Value> {
    if answer.header("content-type") != Some("text/event-stream") {
        return vec![answer.json()];
    }
    let data = answer.body.lines().filter_map(|line| line.strip_prefix("data:"));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// Over stdio: a line for each message.
pub struct Pipe {
    pub process: Process,
    revision: &'static str,
    input: Option<ChildStdin>,
    output: Receiver<Value>,
    /// What came and was not the answer that was waited for.
    pub others: Vec<Value>,
    next: usize,
}

impl Pipe {
    pub fn start(world: &World, command: &mut Command, revision: &'static str) -> Pipe {
        let mut process = Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(world.log_file()));
        let (input, output) = process.pipes();
        let (sender, receiver) = channel();
        let lines = BufReader::new(output.unwrap()).lines().map_while(Result::ok);
        thread::spawn(move || {
            for line in lines {
                // The test may have ended.
                drop(
                    sender.send(serde_json::from_str(&line).unwrap_or_else(|error| json!(format!("{error}: {line}")))),
                );
            }
        });
        let mut pipe = Pipe { process, revision, input, output: receiver, others: Vec::new(), next: 1 };
        if revision == INITIALIZED {
            let answer = pipe.ask("initialize", initialize());
            assert_eq!(answer["result"]["protocolVersion"], INITIALIZED, "{answer}");
            pipe.write(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string());
        }
        pipe
    }

    pub fn write(&mut self, line: &str) {
        self.input.as_mut().expect("not closed").write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Sends a request, and returns its id.
    pub fn send(&mut self, method: &str, params: Value) -> usize {
        let id = self.next;
        self.next += 1;
        self.write(&message(self.revision, id, method, params).to_string());
        id
    }

    pub fn send_call(&mut self, tool: &str, arguments: &Value) -> usize {
        self.send("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// Closes its input.
    pub fn close(&mut self) {
        self.input = None;
    }

    /// The next message; none if the output has ended.
    pub fn next(&mut self) -> Option<Value> {
        self.output.recv_timeout(DEADLINE).ok()
    }

    /// The answer to that request.
    #[track_caller]
    pub fn answer(&mut self, id: usize) -> Value {
        if let Some(found) = self.others.iter().position(|message| message["id"] == id) {
            return self.others.remove(found);
        }
        loop {
            let message = self.next().unwrap_or_else(|| panic!("no answer to {id}, but {:?}", self.others));
            if message["id"] == id {
                return message;
            }
            self.others.push(message);
        }
    }

    /// All that is still to come.
    pub fn rest(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

impl Agent for Pipe {
    #[track_caller]
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        self.answer(id)
    }
}
