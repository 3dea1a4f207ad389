//! The verbs of the tests. The HTTP client is a few lines of its own, so that it shows what is really on the wire.

use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take that is sure to happen.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The whole contract.
pub const FULL: &str = "deduplicates-for=24h,looks-up,absent-is-final-after=1m,cancels,clock-within=1s";

/// The program, which nothing of the environment leads elsewhere.
pub fn counterfoil(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_counterfoil"));
    command.args(arguments).env("NO_COLOR", "1").env("NO_PROXY", "*").stdin(Stdio::null());
    let log = "RUST_LOG";
    for name in
        [log, "COUNTERFOIL_CACHE", "COUNTERFOIL_DEADLINE", "COUNTERFOIL_PROVIDER_TOKEN", "COUNTERFOIL_RETENTION"]
    {
        command.env_remove(name);
    }
    command
}

/// Runs a command that is expected to end by itself.
pub fn run(arguments: &[&str]) -> Output {
    counterfoil(arguments).output().expect("the program starts")
}

/// Asks again and again until there is an answer.
#[track_caller]
pub fn until<T>(ask: impl FnMut() -> Option<T>) -> T {
    until_or(ask, || "it did not come true".to_owned())
}

/// The same, and says what there is instead.
#[track_caller]
pub fn until_or<T>(mut ask: impl FnMut() -> Option<T>, instead: impl FnOnce() -> String) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        if begun.elapsed() > DEADLINE {
            panic!("{}", instead());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// A provider that keeps the whole contract, with the faults and other arguments that are named.
pub fn full(arguments: &[&str]) -> Provider {
    Provider::start(&[&["--contract", FULL, "--seed", "1"], arguments].concat())
}

/// A process that is killed when it goes out of scope.
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Process {
        Process(command.spawn().expect("the program starts"))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// What was piped, once.
    pub fn pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>) {
        (self.0.stdin.take(), self.0.stdout.take())
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// `signal` is a name that the shell knows, such as TERM.
    pub fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        until(|| self.0.try_wait().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A running `counterfoil provider` with a file of its own.
pub struct Provider {
    process: Process,
    pub client: Client,
    folder: TempDir,
}

impl Provider {
    /// On a free port. What is missing in `arguments` is its contract.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    fn start_in(folder: TempDir, arguments: &[&str]) -> Self {
        let log = File::options().create(true).append(true).open(folder.path().join("log")).unwrap();
        let mut command = counterfoil(&["provider", "--listen", "127.0.0.1:0", "--store"]);
        command.arg(folder.path().join("provider.db")).args(arguments).stdout(Stdio::piped()).stderr(log);
        let mut process = Process::start(&mut command);
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on http://").and_then(|rest| rest.strip_suffix("/deployments\n"));
        let Some(address) = address else {
            panic!("{line:?} {}", fs::read_to_string(folder.path().join("log")).unwrap());
        };
        Provider { process, client: Client(address.parse().unwrap()), folder }
    }

    /// Kills it, and starts it on the same file.
    pub fn restart(self, arguments: &[&str]) -> Self {
        drop(self.process);
        Self::start_in(self.folder, arguments)
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    pub fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }

    /// Where a worker finds it.
    pub fn url(&self) -> String {
        format!("http://{}/deployments", self.client.0)
    }

    /// Its own file, in which no row is ever removed.
    pub fn store(&self) -> PathBuf {
        self.folder.path().join("provider.db")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }
}

/// A provider is asked as its client asks.
impl Deref for Provider {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Opens a connection for each request.
#[derive(Clone, Copy)]
pub struct Client(SocketAddr);

impl Client {
    pub fn address(&self) -> SocketAddr {
        self.0
    }

    pub fn at(address: SocketAddr) -> Client {
        Client(address)
    }

    /// Sends these bytes and does not wait for the answer.
    pub fn write(&self, text: &str) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.0)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.write_all(text.as_bytes())?;
        Ok(stream)
    }

    /// Sends a request and does not wait for the answer.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> io::Result<TcpStream> {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.0);
        self.write(&format!("{head}Content-Length: {length}\r\n{headers}\r\n{body}"))
    }

    /// The answer, or the error if there is no answer or not all of it.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> io::Result<Answer> {
        Answer::read(&self.send(method, path, headers, body)?)
    }

    pub fn submit(&self, key: &str, reference: &str) -> io::Result<Answer> {
        self.request("POST", "/deployments", &[("Idempotency-Key", key)], &submission(reference))
    }

    pub fn look_up(&self, reference: &str) -> io::Result<Answer> {
        self.request("GET", &format!("/deployments?client_reference={reference}"), &[], "")
    }

    pub fn cancel(&self, reference: &str) -> io::Result<Answer> {
        let body = json!({ "client_reference": reference }).to_string();
        self.request("POST", "/deployments/cancel", &[], &body)
    }

    pub fn effects(&self) -> Value {
        self.request("GET", "/effects", &[], "").unwrap().json()
    }

    /// How many deployments there are under the reference.
    pub fn effects_of(&self, reference: &str) -> u64 {
        self.effects()["by_reference"][reference].as_u64().unwrap_or(0)
    }

    #[track_caller]
    pub fn set_faults(&self, faults: &str) {
        let answer = self.request("PUT", "/faults", &[], faults).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
}

pub fn submission(reference: &str) -> String {
    json!({ "client_reference": reference, "request": { "service": "web", "revision": "r1" } }).to_string()
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// The names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    /// Reads until the connection is closed, and takes only what is complete by its own length.
    pub fn read(mut stream: &TcpStream) -> io::Result<Self> {
        let mut bytes = Vec::new();
        let read = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).map_err(io::Error::other)?;
        // A connection that is reset after a complete answer has brought the answer.
        Self::parse(&text).ok_or_else(|| read.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()))
    }

    /// None if it is not complete.
    fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.split_once("\r\n\r\n")?;
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
        let mut answer = Answer { status, headers: lines.filter_map(header).collect(), body: String::new() };
        answer.body = match answer.header("content-length") {
            Some(length) => rest.get(..length.parse().ok()?)?.to_owned(),
            None if answer.header("transfer-encoding").is_some() => unchunk(rest)?,
            None => String::new(),
        };
        Some(answer)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn state(&self) -> String {
        self.json()["state"].as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    pub fn assert_absent(&self) {
        assert_eq!((self.status, self.json()), (404, json!({ "state": "absent" })));
    }
}

/// RFC 9112, 7.1, without extensions and trailers. None if the last chunk is missing.
fn unchunk(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (length, chunk) = rest.split_once("\r\n")?;
        let length = usize::from_str_radix(length, 16).ok()?;
        body.push_str(chunk.get(..length)?);
        rest = chunk.get(length..)?.strip_prefix("\r\n")?;
        if length == 0 {
            return Some(body);
        }
    }
}
