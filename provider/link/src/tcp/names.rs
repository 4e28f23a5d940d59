//! Which name a caller may have, by what its connection proves.
//!
//! A name has an address. A caller of another host has the name whose address it calls from; under any other it is called itself, at the
//! name's address, and what answers there has the name. A caller of this host has a name of this host, and is a process of the same user,
//! which the kernel knows of either end of a connection. With a secret job key it may be of another user: it has proved the key.

use std::io;
use std::net::{IpAddr, SocketAddr};

use ipc::credentials::{UNMAPPED, User};
use ipc::{Unshared, tcp_user};
use wire::Addr;

use super::sock;
use crate::net;

/// What a caller may do with the name that it says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Claim {
    /// Have it.
    Granted,
    /// Be called under it: its connection comes from another address of its host, or from another host.
    CallBack,
    /// Nothing, for this reason.
    Refused(String),
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The address at its other end; and whether that is of this host.
    from: IpAddr,
    from_here: bool,
    /// The name's address is of this host.
    name_here: bool,
}

/// How the names of peers are proved.
#[derive(Debug)]
pub(super) struct Names {
    /// The job's key is a secret.
    secret: bool,
    /// Peers of this host may come by this link.
    host: bool,
}

impl Names {
    pub(super) fn new(secret: bool) -> Names {
        Names { secret, host: true }
    }

    /// Whether peers of this host may come by this link.
    pub(super) fn serve_host(&mut self, on: bool) {
        self.host = on;
    }

    /// Whether a caller may have this name; `known`: what the application knows of the peer of that name.
    pub(super) fn claim(&self, name: &Addr, known: Option<&Addr>, fd: &Unshared) -> Claim {
        let Some((here, there)) = sock::ends(fd) else { return Claim::Refused("it is gone".into()) };
        let from = there.ip().to_canonical();
        let seen = Seen { from, from_here: net::is_local(from), name_here: net::is_local(name.ip()) };
        self.judge(name, known, seen, || tcp_user::of_other_end(here, there))
    }

    fn judge(
        &self,
        name: &Addr,
        known: Option<&Addr>,
        seen: Seen,
        user: impl FnOnce() -> io::Result<User>,
    ) -> Claim {
        let further = known.and_then(Addr::further).map(IpAddr::V4);
        match (seen.from_here, seen.name_here) {
            (true, true) if !self.host => Claim::Refused(
                "peers of this host are reached by shared memory: give all processes of a job the same FI_STRAIT_LINKS"
                    .into(),
            ),
            (true, true) => self.prove(user).map_or_else(Claim::Refused, |()| Claim::Granted),
            (true, false) => Claim::Refused("it calls from this host under a name of another one".into()),
            (false, true) => Claim::Refused(format!("it calls from {} under a name of this host", seen.from)),
            (false, false) if seen.from == name.ip() || Some(seen.from) == further => Claim::Granted,
            (false, false) => Claim::CallBack,
        }
    }

    /// Whether what has answered at an address may be the peer of it: a process of this host is of the same user.
    pub(super) fn check_called(&self, fd: &Unshared) -> Result<(), String> {
        match sock::ends(fd) {
            Some((here, there)) if net::is_local(there.ip().to_canonical()) => self.prove_end(here, there),
            _ => Ok(()),
        }
    }

    fn prove_end(&self, here: SocketAddr, there: SocketAddr) -> Result<(), String> {
        self.prove(|| tcp_user::of_other_end(here, there))
    }

    fn prove(&self, user: impl FnOnce() -> io::Result<User>) -> Result<(), String> {
        if self.secret {
            return Ok(());
        }
        match user() {
            Ok(User::Ours) => Ok(()),
            Ok(User::Other) => Err("it is another user's, and the job key is no secret".into()),
            Ok(User::Unknown) => Err(UNMAPPED.into()),
            Err(e) => Err(format!(
                "which user of this host it is of cannot be found out ({e}): set FI_STRAIT_JOB_KEY to a secret"
            )),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn addr(text: &str) -> Addr {
        Addr::new(text.parse().unwrap())
    }

    fn seen(from: &str, from_here: bool, name_here: bool) -> Seen {
        Seen { from: from.parse().unwrap(), from_here, name_here }
    }

    fn unasked() -> io::Result<User> {
        panic!("the user is not asked for")
    }

    #[test]
    fn a_caller_of_another_host_has_the_name_of_its_address() {
        let names = Names::new(false);
        let name = addr("10.0.0.7:5");
        let from = |ip| seen(ip, false, false);
        assert_eq!(names.judge(&name, None, from("10.0.0.7"), unasked), Claim::Granted);
        assert_eq!(names.judge(&name, None, from("10.0.0.8"), unasked), Claim::CallBack);
        // A further address counts where the application has it, since a caller could say any.
        let known = name.with_further([10, 0, 0, 8].into());
        assert_eq!(names.judge(&name, Some(&known), from("10.0.0.8"), unasked), Claim::Granted);
        assert_eq!(names.judge(&known, Some(&name), from("10.0.0.8"), unasked), Claim::CallBack);
    }

    #[test]
    fn names_of_this_host_and_of_others_do_not_mix_even_with_a_secret() {
        for secret in [false, true] {
            let names = Names::new(secret);
            for (from_here, name_here) in [(true, false), (false, true)] {
                let claim =
                    names.judge(&addr("10.0.0.7:5"), None, seen("10.0.0.7", from_here, name_here), unasked);
                assert!(matches!(claim, Claim::Refused(_)), "{claim:?}");
            }
        }
    }

    #[test]
    fn a_caller_of_this_host_is_of_the_same_user_unless_the_key_is_a_secret() {
        let name = addr("127.0.0.1:5");
        let here = seen("127.0.0.1", true, true);
        let of = |user: fn() -> io::Result<User>| Names::new(false).judge(&name, None, here, user);
        assert_eq!(of(|| Ok(User::Ours)), Claim::Granted);
        let others: [fn() -> io::Result<User>; 3] =
            [|| Ok(User::Other), || Ok(User::Unknown), || Err(io::ErrorKind::NotFound.into())];
        for other in others {
            assert!(matches!(of(other), Claim::Refused(_)));
        }
        assert_eq!(Names::new(true).judge(&name, None, here, unasked), Claim::Granted);
    }

    #[test]
    fn where_another_link_serves_this_host_no_caller_of_it_is_let_in() {
        for secret in [false, true] {
            let mut names = Names::new(secret);
            names.serve_host(false);
            let claim = names.judge(&addr("127.0.0.1:5"), None, seen("127.0.0.1", true, true), unasked);
            assert!(matches!(claim, Claim::Refused(_)), "{claim:?}");
            let far = names.judge(&addr("10.0.0.7:5"), None, seen("10.0.0.7", false, false), unasked);
            assert_eq!(far, Claim::Granted);
        }
    }
}
