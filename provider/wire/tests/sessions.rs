//! Connections between hosts: bytes of a stranger, read in every way there is. Seeds are in `__fuzz__`, as those of the
//! frames.

use wire::Addr;
use wire::session::{Answerer, COVERED, Caller, Hello, JobKey, MAC, Next, Opener, RECORD, Role, VERDICT};

/// A hello that is understood says the same again; anything else is refused, by either side, and never believed.
#[test]
fn sessions() {
    let addr = Addr::new(([10, 0, 0, 1], 7).into());
    let own = Hello { role: Role::Caller, instance: 1, epoch: 2, name: addr, other: addr, nonce: [3; 32] };
    let job = JobKey::from_secret(b"key");
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Some(hello) = bytes.first_chunk().and_then(|b| Hello::decode(b).ok()) {
            assert_eq!(hello.encode(), bytes[..Hello::LEN]);
        }
        let mut answerer = Answerer::new(&job, own);
        if let Ok(answer) = answerer.hear_hello(bytes, |_| 2) {
            assert_eq!((answer.len(), answerer.wants()), (Hello::LEN + MAC, MAC));
        }
        assert!(answerer.hear_proof(bytes).is_err());
        let mut caller = Caller::new(&job, own);
        assert!(caller.hear(bytes).is_err());
        // Nor is the second message believed.
        let (mut caller, mut answerer) = (Caller::new(&job, own), Answerer::new(&job, own));
        let answer = answerer.hear_hello(&caller.hello(), |_| 2).expect("an honest hello");
        assert!(matches!(caller.hear(&answer), Ok(Next::Say(_))));
        assert_eq!(caller.wants(), VERDICT);
        assert!(caller.hear(bytes).is_err() && answerer.hear_proof(bytes).is_err());
    });
}

/// Only headers that the other side has made open, whatever else there is.
#[test]
fn records() {
    let addr = Addr::new(([10, 0, 0, 1], 7).into());
    let own = Hello { role: Role::Caller, instance: 1, epoch: 2, name: addr, other: addr, nonce: [3; 32] };
    let job = JobKey::from_secret(b"key");
    let (mut caller, mut answerer) = (Caller::new(&job, own), Answerer::new(&job, own));
    let answer = answerer.hear_hello(&caller.hello(), |_| 2).expect("an honest hello");
    let Ok(Next::Say(proof)) = caller.hear(&answer) else { panic!("an honest answer") };
    let keys = answerer.hear_proof(&proof).expect("an honest proof").keys();
    let opener = std::panic::AssertUnwindSafe(keys.opener);
    bolero::check!().for_each(|bytes: &[u8]| {
        let Some((header, rest)) = bytes.split_first_chunk::<RECORD>() else { return };
        let most = 100_000;
        let len = Opener::len(header, most);
        assert!(len.is_ok_and(|n| n <= most) || len.is_err());
        let front = &rest[..rest.len().min(len.unwrap_or(0)).min(COVERED)];
        assert!(opener.clone().open(header, front).is_err());
    });
}
