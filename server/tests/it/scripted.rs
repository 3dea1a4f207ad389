//! A provider that answers what a test tells it to, byte by byte, and remembers what it was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

#[derive(Clone, Debug)]
pub struct Request {
    pub at: Instant,
    /// The method and the target.
    pub line: String,
    /// The names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Serves each connection on a thread of its own, one request each, until it is dropped.
pub struct Scripted {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    is_over: Arc<AtomicBool>,
}

impl Scripted {
    /// `answer` is given each request and its number, from 0, and may take its time. What it returns is written as it is;
    /// then the connection is closed.
    pub fn start(answer: impl Fn(usize, &Request) -> String + Send + Sync + 'static) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, is_over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (known, over, answer) = (Arc::clone(&requests), Arc::clone(&is_over), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if over.load(Relaxed) {
                    return;
                }
                let (known, answer) = (Arc::clone(&known), Arc::clone(&answer));
                thread::spawn(move || {
                    let Some(request) = read(&stream) else { return };
                    let number = {
                        let mut known = known.lock().unwrap();
                        known.push(request.clone());
                        known.len() - 1
                    };
                    // Whoever asked may have gone.
                    drop((&stream).write_all(answer(number, &request).as_bytes()));
                });
            }
        });
        Scripted { address, requests, is_over }
    }

    /// Answers in this order, and from then on the last.
    pub fn answers(script: &[&str]) -> Scripted {
        let script: Vec<_> = script.iter().map(|&answer| answer.to_owned()).collect();
        Scripted::start(move |number, _| script[number.min(script.len() - 1)].clone())
    }

    pub fn url(&self) -> String {
        format!("http://{}/deployments", self.address)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        drop(TcpStream::connect(self.address));
    }
}

/// None if it breaks off.
fn read(stream: &TcpStream) -> Option<Request> {
    let mut stream = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|length| *length > 0)?;
        Some(line.trim_end().to_owned())
    };
    let first = line()?;
    let mut headers = Vec::new();
    loop {
        let line = line()?;
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.push((name.to_lowercase(), value.to_owned()));
    }
    let mut request =
        Request { at: Instant::now(), line: first.strip_suffix(" HTTP/1.1")?.to_owned(), headers, body: String::new() };
    let length = request.header("content-length").map_or(Some(0), |length| length.parse().ok())?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    request.body = String::from_utf8(body).ok()?;
    Some(request)
}

/// `status` with its reason, such as `200 OK`; `headers` each with its line break.
pub fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n{body}", body.len())
}

pub const SUCCEEDED: &str = r#"{"id":"dep-1","state":"succeeded"}"#;

pub fn succeeded() -> String {
    answer("201 Created", "", SUCCEEDED)
}
