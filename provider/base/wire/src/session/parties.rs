//! What either side says in its turn, and what it makes of what the other one says. No IO: bytes in, bytes
//! out.

use super::key::Hellos;
use super::{Hello, JobKey, MAC, Opener, Role, Sealer, Stranger};
/// Bytes of a verdict with its MAC.
pub const VERDICT: usize = 8 + MAC;

const ANSWER: &str = "strait tcp answer";
const PROOF: &str = "strait tcp proof";
const SENTENCE: &str = "strait tcp verdict";
const CONFIRMATION: &str = "strait tcp confirmation";
const RECORDS: &str = "strait tcp records";
const RAILS: &str = "strait tcp rails";

/// What the answerer makes of a caller that has the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// Records may come.
    Accepted = 1,
    /// The answerer is calling the caller itself, and its own call counts.
    Crossing = 2,
    /// The answerer has a connection to the caller's name already, under another name of its own.
    Known = 3,
    /// The answerer has no room for more connections.
    Full = 4,
    /// The answerer is not what the caller called: it has no such name.
    Other = 5,
    /// The answerer has a connection to the caller's name that is not known to have ended, and asks whether
    /// it has: to be called again.
    Busy = 6,
    /// The answerer does not grant the caller its name.
    Denied = 7,
}

impl Verdict {
    fn of(v: u8) -> Option<Verdict> {
        Some(match v {
            1 => Verdict::Accepted,
            2 => Verdict::Crossing,
            3 => Verdict::Known,
            4 => Verdict::Full,
            5 => Verdict::Other,
            6 => Verdict::Busy,
            7 => Verdict::Denied,
            _ => return None,
        })
    }
}

/// What came of a message of the other side.
#[derive(Debug)]
pub enum Heard {
    /// It is no Strait, or of another version.
    Stranger(Stranger),
    /// It has another key, or is not the one that was called.
    NotOurs,
}

/// What the caller does next.
#[derive(Debug)]
pub enum Next {
    /// It says this, and listens for [`Caller::wants`] bytes.
    Say(Vec<u8>),
    /// It has a connection to the endpoint that said this hello, and says [`Caller::confirmation`].
    Connected(Hello, Keys),
    /// The answerer does not want it.
    Declined(Hello, Verdict),
}

/// The keys of the records of a connection.
#[derive(Debug)]
pub struct Keys {
    /// Of this side's.
    pub sealer: Sealer,
    /// Of the other side's.
    pub opener: Opener,
    /// What takes the place of the job's key where a rail is added to this connection. A rail has none.
    pub rails: Option<JobKey>,
}

fn keys(job: &JobKey, hellos: &Hellos, role: Role) -> Keys {
    let is_rail = Hello::decode(&hellos.caller).is_ok_and(|hello| matches!(hello.role, Role::Rail(_)));
    let rails = (!is_rail).then(|| job.derived(job.sign(RAILS, hellos, &[])));
    Keys { rails, ..halves(job, job.sign(RECORDS, hellos, &[]), role) }
}

/// Two keys, of which the caller's is the first, that were derived from the job's.
pub(super) fn halves(job: &JobKey, both: [u8; MAC], role: Role) -> Keys {
    let half = |at: usize| -> [u8; 16] { std::array::from_fn(|i| both[at + i]) };
    let (caller, answerer) = (half(0), half(16));
    let (own, other) = if role == Role::Answerer { (answerer, caller) } else { (caller, answerer) };
    let secret = job.is_secret();
    Keys { sealer: Sealer::new(own, secret), opener: Opener::new(other, secret), rails: None }
}

/// The side that connects.
#[derive(Debug)]
pub struct Caller {
    job: JobKey,
    own: Hello,
    /// What the answerer has said.
    answer: Option<(Hello, Hellos)>,
    confirmation: Option<[u8; MAC]>,
}

impl Caller {
    /// One that says this.
    pub fn new(job: &JobKey, own: Hello) -> Caller {
        Caller {
            job: job.clone(),
            own: Hello { role: Role::Caller, ..own },
            answer: None,
            confirmation: None,
        }
    }

    /// One that adds a rail of this number to a connection, whose [`Keys::rails`] this is.
    pub fn of_rail(connection: &JobKey, number: u8, own: Hello) -> Caller {
        let own = Hello { role: Role::Rail(number), ..own };
        Caller { job: connection.clone(), own, answer: None, confirmation: None }
    }

    /// What it says first.
    pub fn hello(&self) -> [u8; Hello::LEN] {
        self.own.encode()
    }

    /// How many bytes the answerer's next message has.
    pub fn wants(&self) -> usize {
        if self.answer.is_none() { Hello::LEN + MAC } else { VERDICT }
    }

    /// Takes the answerer's next message, or less of it where there is no more.
    pub fn hear(&mut self, message: &[u8]) -> Result<Next, Heard> {
        match self.answer.take() {
            None => self.hear_answer(message),
            Some((peer, hellos)) => {
                let (Some(code), Some(mac)) = (message.get(..8), message.get(8..VERDICT)) else {
                    return Err(Heard::NotOurs);
                };
                if !self.job.verify(SENTENCE, &hellos, code, mac) {
                    return Err(Heard::NotOurs);
                }
                match Verdict::of(code[0]).ok_or(Heard::NotOurs)? {
                    Verdict::Accepted => {
                        let is_call = self.own.role == Role::Caller;
                        self.confirmation = is_call.then(|| self.job.sign(CONFIRMATION, &hellos, &[]));
                        Ok(Next::Connected(peer, keys(&self.job, &hellos, Role::Caller)))
                    }
                    other => Ok(Next::Declined(peer, other)),
                }
            }
        }
    }

    /// What it says before all records of a connection that it has. A rail has none.
    pub fn confirmation(&self) -> Option<[u8; MAC]> {
        self.confirmation
    }

    fn hear_answer(&mut self, message: &[u8]) -> Result<Next, Heard> {
        Hello::check(message).map_err(Heard::Stranger)?;
        let (Some(answerer), Some(mac)) = (message.first_chunk(), message.get(Hello::LEN..)) else {
            return Err(Heard::NotOurs);
        };
        let hellos = Hellos { caller: self.own.encode(), answerer: *answerer };
        let peer = Hello::decode(answerer).map_err(Heard::Stranger)?;
        let sane = peer.role == Role::Answerer && peer.other == self.own.name;
        if !sane || !self.job.verify(ANSWER, &hellos, &[], mac) {
            return Err(Heard::NotOurs);
        }
        let proof = self.job.sign(PROOF, &hellos, &[]);
        self.answer = Some((peer, hellos));
        Ok(Next::Say(proof.into()))
    }
}

/// The side that was called.
#[derive(Debug)]
pub struct Answerer {
    job: JobKey,
    /// What it says, without the caller that it says it to.
    own: Hello,
    /// What the caller has said.
    asked: Option<(Hello, Hellos)>,
}

/// A caller that has the job's key.
#[derive(Debug)]
pub struct Proven {
    job: JobKey,
    /// What it said.
    pub peer: Hello,
    /// The hello that this side sent.
    pub own: Hello,
    hellos: Hellos,
}

impl Answerer {
    /// One that answers with this: which caller it says it to comes of the caller's hello.
    pub fn new(job: &JobKey, own: Hello) -> Answerer {
        Answerer { job: job.clone(), own: Hello { role: Role::Answerer, ..own }, asked: None }
    }

    /// How many bytes the caller's next message has.
    pub fn wants(&self) -> usize {
        if self.asked.is_none() { Hello::LEN } else { MAC }
    }

    /// What it says to a caller of another version.
    pub fn refusal(&self) -> [u8; Hello::LEN] {
        self.own.encode()
    }

    /// Takes the caller's hello; the answer.
    pub fn hear_hello(&mut self, message: &[u8]) -> Result<Vec<u8>, Heard> {
        self.hear_any(message, |_| None)
    }

    /// Takes the hello of a caller that may be one of a rail: `connection` has [`Keys::rails`] of the
    /// connection that it says to be of.
    pub fn hear_any(
        &mut self,
        message: &[u8],
        connection: impl FnOnce(&Hello) -> Option<JobKey>,
    ) -> Result<Vec<u8>, Heard> {
        Hello::check(message).map_err(Heard::Stranger)?;
        let caller = message.first_chunk().ok_or(Heard::NotOurs)?;
        let peer = Hello::decode(caller).map_err(Heard::Stranger)?;
        match peer.role {
            Role::Caller => {}
            Role::Rail(_) => self.job = connection(&peer).ok_or(Heard::NotOurs)?,
            Role::Answerer => return Err(Heard::NotOurs),
        }
        self.own.other = peer.name;
        let hellos = Hellos { caller: *caller, answerer: self.own.encode() };
        let mut answer = hellos.answerer.to_vec();
        answer.extend(self.job.sign(ANSWER, &hellos, &[]));
        self.asked = Some((peer, hellos));
        Ok(answer)
    }

    /// Takes the caller's proof.
    pub fn hear_proof(self, message: &[u8]) -> Result<Proven, Heard> {
        let (peer, hellos) = self.asked.ok_or(Heard::NotOurs)?;
        if !self.job.verify(PROOF, &hellos, &[], message) {
            return Err(Heard::NotOurs);
        }
        Ok(Proven { job: self.job, peer, own: self.own, hellos })
    }
}

impl Proven {
    /// The message with the verdict, for the caller.
    pub fn verdict(&self, verdict: Verdict) -> [u8; VERDICT] {
        let code = [verdict as u8, 0, 0, 0, 0, 0, 0, 0];
        let mut out = [0; VERDICT];
        out[..8].copy_from_slice(&code);
        out[8..].copy_from_slice(&self.job.sign(SENTENCE, &self.hellos, &code));
        out
    }

    /// Whether this is the confirmation of a caller after [`Verdict::Accepted`].
    pub fn is_confirmation(&self, message: &[u8]) -> bool {
        self.peer.role == Role::Caller && self.job.verify(CONFIRMATION, &self.hellos, &[], message)
    }

    /// Whether it is a rail of the connection whose [`Keys::rails`] this is.
    pub fn is_of(&self, connection: &JobKey) -> bool {
        self.job == *connection
    }

    /// The keys, if it is accepted.
    pub fn keys(&self) -> Keys {
        keys(&self.job, &self.hellos, Role::Answerer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Addr;

    fn hello(role: Role, n: u8) -> Hello {
        let addr = |n: u8| Addr::new(([10, 0, 0, n], 7).into());
        Hello { role, instance: n.into(), name: addr(n), other: addr(3 - n), nonce: [n; 32] }
    }

    fn parties(a: &[u8], b: &[u8]) -> (Caller, Answerer) {
        let [a, b] = [a, b].map(JobKey::from_secret);
        (Caller::new(&a, hello(Role::Caller, 1)), Answerer::new(&b, hello(Role::Answerer, 2)))
    }

    fn said(next: Result<Next, Heard>) -> Vec<u8> {
        match next {
            Ok(Next::Say(bytes)) => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sides_with_one_key_connect_and_understand_each_other() {
        let (mut caller, mut answerer) = parties(b"key", b"key");
        assert_eq!((caller.wants(), answerer.wants()), (Hello::LEN + MAC, Hello::LEN));
        let answer = answerer.hear_hello(&caller.hello()).unwrap();
        assert_eq!((answer.len(), answerer.wants()), (caller.wants(), MAC));
        let proof = said(caller.hear(&answer));
        let proven = answerer.hear_proof(&proof).unwrap();
        assert_eq!(proven.peer, hello(Role::Caller, 1));
        assert_eq!(caller.wants(), VERDICT);
        let Ok(Next::Connected(peer, mut ours)) = caller.hear(&proven.verdict(Verdict::Accepted)) else {
            panic!("not connected")
        };
        assert_eq!(peer, hello(Role::Answerer, 2));
        let said = caller.confirmation().expect("a call has one");
        assert!(
            proven.is_confirmation(&said) && !proven.is_confirmation(&proof) && !proven.is_confirmation(&[])
        );
        let mut theirs = proven.keys();
        let header = ours.sealer.seal(2, b"hi");
        assert_eq!(theirs.opener.open(&header, b"hi"), Ok(()));
        let header = theirs.sealer.seal(3, b"you");
        assert_eq!(ours.opener.open(&header, b"you"), Ok(()));
        // What one side said is nothing that the other one could have said.
        let header = theirs.sealer.seal(3, b"you");
        assert!(theirs.opener.open(&header, b"you").is_err());
    }

    #[test]
    fn a_caller_gets_the_verdict_of_an_answerer() {
        let declined = [Verdict::Crossing, Verdict::Known, Verdict::Full, Verdict::Other, Verdict::Busy];
        for verdict in declined.into_iter().chain([Verdict::Denied]) {
            let (mut caller, mut answerer) = parties(b"key", b"key");
            let proof = said(caller.hear(&answerer.hear_hello(&caller.hello()).unwrap()));
            let proven = answerer.hear_proof(&proof).unwrap();
            let next = caller.hear(&proven.verdict(verdict));
            assert!(matches!(next, Ok(Next::Declined(_, v)) if v == verdict), "{next:?}");
            assert_eq!(caller.confirmation(), None);
        }
    }

    #[test]
    fn another_key_is_noticed_by_both_sides() {
        let (mut caller, mut answerer) = parties(b"key", b"quay");
        let answer = answerer.hear_hello(&caller.hello()).unwrap();
        assert!(matches!(caller.hear(&answer), Err(Heard::NotOurs)));
        // A caller that does not mind has no proof.
        assert!(matches!(answerer.hear_proof(&answer[Hello::LEN..]), Err(Heard::NotOurs)));
    }

    #[test]
    fn what_was_said_to_others_is_no_proof() {
        let (mut caller, mut first) = parties(b"key", b"key");
        let proof = said(caller.hear(&first.hear_hello(&caller.hello()).unwrap()));
        // The same hello and proof, said again to an answerer with a nonce of its own.
        let mut own = hello(Role::Answerer, 2);
        own.nonce = [9; 32];
        let mut second = Answerer::new(&JobKey::from_secret(b"key"), own);
        second.hear_hello(&caller.hello()).unwrap();
        assert!(matches!(second.hear_proof(&proof), Err(Heard::NotOurs)));
        // An answer to another caller, and the caller's own hello thrown back.
        let (mut caller, _) = parties(b"key", b"key");
        let mut other = Caller::new(&JobKey::from_secret(b"key"), hello(Role::Caller, 2));
        let mut third = Answerer::new(&JobKey::from_secret(b"key"), hello(Role::Answerer, 1));
        let answer = third.hear_hello(&other.hello()).unwrap();
        assert!(matches!(caller.hear(&answer), Err(Heard::NotOurs)));
        assert!(matches!(other.hear(&answer), Ok(Next::Say(_))));
        let (mut caller, _) = parties(b"key", b"key");
        let mut thrown = caller.hello().to_vec();
        thrown.extend([0; MAC]);
        assert!(matches!(caller.hear(&thrown), Err(Heard::NotOurs)));
    }

    #[test]
    fn another_version_is_reported_as_such() {
        let (mut caller, mut answerer) = parties(b"key", b"key");
        let mut newer = caller.hello();
        newer[10] ^= 1;
        let frames = u16::from_le_bytes([newer[10], newer[11]]);
        let is = |heard: Heard| matches!(heard, Heard::Stranger(Stranger::Version { frames: f, .. }) if f == frames);
        assert!(is(answerer.hear_hello(&newer).unwrap_err()));
        // Its answer ends with the hello, or before.
        let mut refusal = answerer.refusal();
        refusal[10] ^= 1;
        assert!(is(caller.hear(&refusal).unwrap_err()));
        assert!(is(caller.hear(&refusal[..super::super::PREFIX]).unwrap_err()));
    }

    /// Records of a connection, of its rails, and of a fabric that was agreed on by it.
    #[test]
    fn records_are_protected_by_macs_where_the_key_is_of_a_secret() {
        for (job, secret) in [(JobKey::from_secret(b"key"), true), (JobKey::from_job(&["key"]), false)] {
            let mut caller = Caller::new(&job, hello(Role::Caller, 1));
            let mut answerer = Answerer::new(&job, hello(Role::Answerer, 2));
            let proof = said(caller.hear(&answerer.hear_hello(&caller.hello()).unwrap()));
            let proven = answerer.hear_proof(&proof).unwrap();
            let Ok(Next::Connected(_, mut ours)) = caller.hear(&proven.verdict(Verdict::Accepted)) else {
                panic!("not connected");
            };
            let mut theirs = proven.keys();
            let header = ours.sealer.seal(2, b"hi");
            assert_eq!(theirs.opener.open(&header, b"hi"), Ok(()));
            let of_rail = ours.rails.clone().unwrap();
            assert_eq!(of_rail.is_secret(), secret);
            let fabric = super::super::fabric_keys(&job, b"a", b"b", Role::Caller);
            for keys in [ours, theirs, fabric] {
                assert_eq!((keys.sealer.is_of_secret(), keys.opener.is_of_secret()), (secret, secret));
            }
        }
    }

    #[test]
    fn golden_macs() {
        let (mut caller, mut answerer) = parties(b"key", b"key");
        let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
        // Apart from the version of the frames, which is in the hellos, these are a promise.
        let answer = answerer.hear_hello(&caller.hello()).unwrap();
        let proof = said(caller.hear(&answer));
        let proven = answerer.hear_proof(&proof).unwrap();
        let verdict = proven.verdict(Verdict::Accepted);
        assert_eq!(crate::VERSION, 14, "compute these anew");
        assert!(matches!(caller.hear(&verdict), Ok(Next::Connected(..))));
        let confirmation = caller.confirmation().unwrap();
        let all = [hex(&answer[Hello::LEN..]), hex(&proof), hex(&verdict), hex(&confirmation)];
        assert_eq!(all, GOLDEN);
    }

    #[test]
    fn a_rail_has_keys_of_the_connection_that_it_is_of() {
        let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let connect = |key: &[u8]| {
            let (mut caller, mut answerer) = parties(key, key);
            let proof = said(caller.hear(&answerer.hear_hello(&caller.hello()).unwrap()));
            let proven = answerer.hear_proof(&proof).unwrap();
            let Ok(Next::Connected(_, ours)) = caller.hear(&proven.verdict(Verdict::Accepted)) else {
                panic!()
            };
            assert_eq!(ours.rails, proven.keys().rails);
            ours.rails.unwrap()
        };
        let (key, other) = (connect(b"key"), connect(b"another"));
        assert_ne!(key, other);
        let own = |n: u8| hello(Role::Answerer, n);
        // With that key, and no other, though it be the job's.
        let job = JobKey::from_secret(b"key");
        for wrong in [&other, &job] {
            let mut caller = Caller::of_rail(wrong, 4, own(1));
            let mut answerer = Answerer::new(&job, own(2));
            let answer = answerer.hear_any(&caller.hello(), |_| Some(key.clone())).unwrap();
            assert!(matches!(caller.hear(&answer), Err(Heard::NotOurs)));
        }
        let mut caller = Caller::of_rail(&key, 4, own(1));
        assert!(Answerer::new(&job, own(2)).hear_hello(&caller.hello()).is_err(), "there is no connection");
        let mut answerer = Answerer::new(&job, own(2));
        let answer = answerer
            .hear_any(&caller.hello(), |peer| (peer.role == Role::Rail(4)).then(|| key.clone()))
            .unwrap();
        let proof = said(caller.hear(&answer));
        let proven = answerer.hear_proof(&proof).unwrap();
        assert!(proven.is_of(&key) && !proven.is_of(&other));
        let verdict = proven.verdict(Verdict::Accepted);
        assert_eq!([hex(&answer[Hello::LEN..]), hex(&proof), hex(&verdict)], OF_RAIL);
        let Ok(Next::Connected(_, mut ours)) = caller.hear(&verdict) else { panic!("not connected") };
        assert_eq!(caller.confirmation(), None, "a rail has none");
        let mut theirs = proven.keys();
        assert!(ours.rails.is_none() && theirs.rails.is_none(), "a rail has none");
        let header = ours.sealer.seal(2, b"hi");
        assert_eq!(theirs.opener.open(&header, b"hi"), Ok(()));
    }

    /// Computed by other means, as the module's documentation says.
    const OF_RAIL: [&str; 3] = [
        "ce2e6f7154902c669b404b14815f489542a8c389a92d98586665e816e48e5e7a",
        "399dc534104328488450d11d1f461f54d39cd9e3db8a26c7fa6b5704e3954977",
        "010000000000000070ff19b6ff8d56b4a8eb6130e80596f1065f04253a88926196c85df4de28341f",
    ];

    /// Computed by other means, as the module's documentation says.
    const GOLDEN: [&str; 4] = [
        "c6971c6a98466cdf9c7c7c51b31d2d99236ba9aa887a5de8948a24eb6d86839e",
        "a37f1f8b708cbd4b9fdf820195953d82eaf02844e7e1f4d8fdc78d75a3143aed",
        "010000000000000016ce509ba788d576af9492e0f661b4671821cc5b181dc40a333731fbaf55ef66",
        "0d0a52013b50cdab409e7e539af7bce42bd1239cf4aa5f61a474e2b94a9a5fc8",
    ];
}
