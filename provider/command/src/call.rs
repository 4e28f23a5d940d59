//! `strait info --peer ADDRESS --try`: calls the peer, and says why it does not answer.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use crate::doctor::{self, Scratch};
use crate::fabric::{self, Called, Error, Library, Outcome};
use crate::info::peer::{self, Way};
use crate::info::{self, NAME};

/// What hearing why there is no connection may take of the limit, and closing the endpoint beyond it.
const REST: Duration = Duration::from_secs(1);
/// The way in which the provider writes that it has no connection: what is behind it is the reason.
const REASONS: [&str; 2] = ["no connection by tcp: ", "no connection: "];
const OTHER_KEY: &str = "start this command by the job's launcher, or give both sides one FI_STRAIT_JOB_KEY: without one the \
                         key is made of the job's name, which this environment may not have";
const NOT_THERE: &str = "take address and port from the log of the peer's process (FI_LOG_LEVEL=info) while it runs: a job \
                         all of whose processes are on one host listens on no port; else open the port in its host's firewall";
const STUCK: &str = "see what that process does (`strait doctor --timeout 60 -- PROGRAM`, gdb -p): it answers in its calls of libfabric";

/// What a call came to, as it is printed with `--json`.
#[derive(Debug, Serialize)]
pub struct Call {
    pub answered: bool,
    pub seconds: f64,
    /// Of a short operation, and its answer by the peer's progress.
    pub round_trip_us: Option<f64>,
    /// Why there was no answer.
    pub why: Option<String>,
    pub todo: Option<String>,
}

/// The path to a peer, and what came of a call.
#[derive(Debug, Serialize)]
struct Tried {
    #[serde(flatten)]
    way: Way,
    /// Where a link leads to the peer.
    call: Option<Call>,
}

/// Calls the peer that the options name, and prints what came of it. Whether it answered.
pub fn run(options: &info::Options) -> Result<bool, Error> {
    let peer = peer::parse(options.peer.as_deref().unwrap_or_default())?;
    let (dir, limit) = (Scratch::new()?, options.timeout);
    set(&dir, limit.saturating_sub(REST));
    let library = Library::load(options.libfabric.as_deref())?;
    let mut tried = Tried { way: peer::query(&library, peer)?, call: None };
    if tried.way.link.is_some() {
        let called = fabric::call(&library, NAME, peer, limit)?;
        let lines = doctor::journal(&dir.0).into_iter().flat_map(|process| process.lines);
        let warnings: Vec<String> = lines.filter(|line| line.warns).map(|line| line.text).collect();
        tried.call = Some(Call::new(&called, &warnings, peer));
        tried.way.link = peer::link_of(&called.path).or(tried.way.link);
        tried.way.path = called.path;
    }
    info::print(options.json, &tried, || render(&tried))?;
    Ok(tried.call.is_some_and(|call| call.answered))
}

fn render(tried: &Tried) -> String {
    let mut out = info::way(&tried.way);
    if let Some(call) = &tried.call {
        info::put(&mut out, "answer", &call.to_string());
        call.todo.iter().for_each(|todo| info::put(&mut out, "to do", todo));
    }
    out
}

/// The provider keeps to the limit, and writes its log where this process reads it.
fn set(dir: &Scratch, limit: Duration) {
    let mut all = vec![(link::journal::VARIABLE.to_owned(), dir.0.clone().into_os_string())];
    let of =
        [(&settings::TCP_TIMEOUT, limit), (&settings::CONNECT_TIMEOUT, limit), (&settings::TCP_LINGER, REST)];
    for (setting, limit) in of {
        let (name, most) = (setting.variable(), limit.as_millis());
        let default = setting.default.parse().unwrap_or(most);
        let is = std::env::var(&name).ok().and_then(|value| value.trim().parse().ok()).unwrap_or(default);
        all.push((name, is.min(most).to_string().into()));
    }
    for (name, value) in all {
        // SAFETY: this process has one thread: libfabric, whose providers start others, is loaded later.
        unsafe { std::env::set_var(name, value) };
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds;
        match (&self.why, self.round_trip_us) {
            (Some(why), _) => write!(f, "NONE in {seconds:.1} s: {why}"),
            (None, Some(trip)) => write!(
                f,
                "after {:.2} ms, with the time of the connection; round trip {trip:.0} us, with the peer's progress",
                seconds * 1e3
            ),
            (None, None) => write!(f, "after {:.2} ms, and none to what was sent then", seconds * 1e3),
        }
    }
}

impl Call {
    fn new(called: &Called, warnings: &[String], peer: SocketAddr) -> Call {
        let seconds = called.took.as_secs_f64();
        let none = Call { answered: false, seconds, round_trip_us: None, why: None, todo: None };
        let why = match &called.outcome {
            Outcome::Answered { first, round_trip } => {
                let round_trip_us = round_trip.map(|time| time.as_secs_f64() * 1e6);
                return Call { answered: true, seconds: first.as_secs_f64(), round_trip_us, ..none };
            }
            Outcome::Failed(error) => reason(warnings, peer).unwrap_or_else(|| error.clone()),
            Outcome::Silent => reason(warnings, peer).unwrap_or_else(|| {
                format!(
                    "there is a connection, and the process does not answer: it is stopped, or makes no progress (nothing came \
                     in {seconds:.0} s)"
                )
            }),
        };
        Call { todo: Some(todo(&why)), why: Some(why), ..none }
    }
}

/// What the provider warned of last about this peer.
fn reason(warnings: &[String], peer: SocketAddr) -> Option<String> {
    let name = peer.to_string();
    let text = warnings.iter().rfind(|text| text.contains(&name))?;
    let found = REASONS.iter().find_map(|begin| text.split_once(begin));
    Some(found.map_or(text.as_str(), |(_, why)| why).to_owned())
}

fn todo(why: &str) -> String {
    let own = [
        ("another job key", OTHER_KEY),
        ("nothing listens", NOT_THERE),
        ("closed the connection", NOT_THERE),
        ("onnection reset", NOT_THERE),
        ("does not speak this protocol", NOT_THERE),
        ("process does not answer", STUCK),
    ];
    let found = own.iter().find(|(words, _)| why.contains(words)).map(|(_, todo)| (*todo).to_owned());
    found.or_else(|| doctor::todo(why)).unwrap_or_else(|| "FI_LOG_LEVEL=info has what came before it".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(outcome: Outcome, warnings: &[&str]) -> Call {
        let called = Called { outcome, path: String::new(), took: Duration::from_secs(9) };
        let warnings: Vec<String> = warnings.iter().map(|text| (*text).to_owned()).collect();
        Call::new(&called, &warnings, "10.9.0.2:7".parse().unwrap())
    }

    #[test]
    fn an_answer_has_its_times() {
        let times = Outcome::Answered {
            first: Duration::from_millis(2),
            round_trip: Some(Duration::from_micros(30)),
        };
        let call = of(times, &["10.9.0.1:1 -> 10.9.0.2:7: no connection by tcp: nothing has answered yet"]);
        assert!(call.answered && call.why.is_none() && call.todo.is_none(), "{call:?}");
        assert!((call.seconds - 0.002).abs() < 1e-9 && call.round_trip_us == Some(30.0), "{call:?}");
    }

    #[test]
    fn the_reason_is_the_last_warning_of_that_peer_with_something_to_do() {
        for (warning, why, todo) in [
            (
                "no connection: it has another job key: give",
                "it has another job key",
                "one FI_STRAIT_JOB_KEY",
            ),
            (
                "no connection by tcp: nothing has answered for 5 s: a firewall",
                "nothing has answered",
                "firewall",
            ),
            (
                "no connection by tcp: what listens there has closed the connection: it",
                "what",
                "address and port",
            ),
            ("no connection by tcp: Connection reset by peer", "Connection reset", "address and port"),
            ("no connection by tcp: nothing listens there: its", "nothing listens there", "address and port"),
            (
                "no connection by tcp: the host has taken the connection and the process does not answer: it",
                "the host has",
                "gdb -p",
            ),
            (
                "no connection: it has version 4.2 of the protocol, and this is 3.1: use one release",
                "it has version 4.2",
                "one version",
            ),
        ] {
            let line = format!("10.9.0.1:1 -> 10.9.0.2:7: {warning}");
            let call =
                of(Outcome::Failed("no".into()), &["10.9.0.1:1 -> 10.9.0.2:8: no connection: x", &line]);
            assert!(call.why.as_ref().is_some_and(|text| text.starts_with(why)), "{call:?}");
            assert!(call.todo.as_ref().is_some_and(|text| text.contains(todo)), "{call:?}");
        }
        let call = of(Outcome::Failed("the error".into()), &[]);
        assert_eq!(call.why.as_deref(), Some("the error"));
        let silent = of(Outcome::Silent, &[]);
        assert!(silent.why.as_ref().is_some_and(|text| text.contains("makes no progress")), "{silent:?}");
        assert!(silent.todo.is_some_and(|text| text.contains("gdb -p")));
    }
}
