//! Rules, and what they say of a publisher and a request.

use super::pattern::{Pattern, Target};
use crate::publisher::Kind;
use crate::topology::{Map, Route};

/// To which requests and publishers a rule applies. What is not said applies to all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scope {
    pub publisher: Option<Target>,
    pub client: Option<Pattern>,
    pub uid: Option<u32>,
    pub job: Option<Pattern>,
}

/// What a rule says.
#[derive(Clone, Debug, PartialEq)]
pub enum Says {
    /// Not from there.
    Deny,
    /// From there if it can be, before what is closer.
    Prefer,
    /// The publisher's memory has to reach the clients by bus addresses.
    RequireBus,
    /// No host memory.
    RequirePeer,
    /// No client may be farther away.
    MaxDistance(u32),
    /// A user may have so many bytes of these publishers together. Without `uid`, each user.
    Quota(u64),
    /// From there or not at all.
    Pin,
}

/// A rule, and the line it is from (0: not from a file).
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub line: usize,
    pub text: String,
    pub says: Says,
    pub scope: Scope,
}

impl Rule {
    fn place(&self) -> String {
        match self.line {
            0 => format!("rule \"{}\"", self.text),
            n => format!("rule \"{}\" (line {n})", self.text),
        }
    }
}

/// Rules, in their order.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub(super) rules: Vec<Rule>,
}

/// What is asked about a publisher.
#[derive(Debug)]
pub struct Case<'a> {
    pub publisher: &'a str,
    pub kind: Kind,
    pub uid: u32,
    pub job: &'a str,
    /// Of each client: its address and names, and how it reaches the publisher.
    pub clients: &'a [(Vec<String>, Route)],
}

impl Case<'_> {
    fn is_in(&self, scope: &Scope) -> bool {
        self.of_user(scope) && self.of_publisher(scope)
    }

    fn of_publisher(&self, scope: &Scope) -> bool {
        scope.publisher.as_ref().is_none_or(|p| p.matches(self.publisher, self.kind))
    }

    fn of_user(&self, scope: &Scope) -> bool {
        scope.uid.is_none_or(|uid| uid == self.uid)
            && scope.job.as_ref().is_none_or(|job| job.matches(self.job))
            && scope.client.as_ref().is_none_or(|_| self.clients_in(scope).next().is_some())
    }

    /// The clients that a rule is about.
    fn clients_in<'a>(&'a self, scope: &'a Scope) -> impl Iterator<Item = &'a (Vec<String>, Route)> {
        let named =
            |names: &[String]| scope.client.as_ref().is_none_or(|c| names.iter().any(|n| c.matches(n)));
        self.clients.iter().filter(move |(names, _)| named(names))
    }
}

impl Rules {
    pub fn all(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether the rules let the publisher serve the request: then, how much it is preferred, less being
    /// more. In `Err`, which rule does not, and why.
    pub fn judge(&self, case: &Case<'_>) -> Result<usize, String> {
        let mut rank = self.rules.len();
        let pinned = |r: &&Rule| r.says == Says::Pin && case.of_user(&r.scope);
        let mut pins = self.rules.iter().filter(pinned).peekable();
        if let Some(first) = pins.peek().map(|r| r.place()) {
            if !pins.any(|r| case.of_publisher(&r.scope)) {
                return Err(format!("{first} pins it elsewhere"));
            }
        }
        for (n, rule) in self.rules.iter().enumerate().filter(|(_, r)| case.is_in(&r.scope)) {
            let place = || rule.place();
            match rule.says {
                Says::Deny => return Err(format!("{} denies it", place())),
                Says::Prefer => rank = rank.min(n),
                Says::RequireBus | Says::RequirePeer => {
                    let bus_only = rule.says == Says::RequireBus;
                    let wrong = |m: Map| m != Map::BusAddress && (bus_only || m != Map::HostBridge);
                    // Without clients there is no route; host memory is host memory all the same.
                    if case.kind == Kind::Host {
                        return Err(format!("{}: it is host memory", place()));
                    }
                    if let Some((names, route)) = case.clients_in(&rule.scope).find(|(_, r)| wrong(r.map)) {
                        let (map, client) = (route.map.name(), &names[0]);
                        return Err(format!("{}: the map for {client} is {map} ({route})", place()));
                    }
                }
                Says::MaxDistance(most) => {
                    let far = |r: &Route| r.map != Map::HostMemory && r.distance > most;
                    if let Some((names, route)) = case.clients_in(&rule.scope).find(|(_, r)| far(r)) {
                        return Err(format!("{}: {} is {} away", place(), names[0], route.distance));
                    }
                }
                Says::Quota(_) | Says::Pin => {}
            }
        }
        Ok(rank)
    }

    /// Whether a user may have `more` bytes of a publisher. `used` says what the user has of the publishers
    /// that a target names. In `Err`, which quota would be exceeded.
    pub fn quota(
        &self,
        case: &Case<'_>,
        wanted: u64,
        used: impl Fn(Option<&Target>) -> u64,
    ) -> Result<(), String> {
        for rule in &self.rules {
            let Says::Quota(most) = rule.says else { continue };
            if !case.is_in(&rule.scope) {
                continue;
            }
            let has = used(rule.scope.publisher.as_ref());
            if has.saturating_add(wanted) > most {
                let uid = case.uid;
                return Err(format!(
                    "{}: uid {uid} has {has} of {most} bytes and asks for {wanted}",
                    rule.place()
                ));
            }
        }
        Ok(())
    }
}
