//! Where others reach this daemon: the addresses that it announces to its cluster.
//!
//! Those of the settings, or the one that it listens on. Where it listens on every address of its
//! host, it is the one from which the host sends to the metadata server. The routing table is asked
//! anew for each registration and at each heartbeat: at boot neither names nor routes may be there
//! yet, and a host may get another address at any time. What was announced before would stand in
//! the cluster's map for as long as the daemon runs, and nobody would find its targets there.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use millrace_types::{ErrorKind, Failure};

/// What the announcement is made from.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    listens: SocketAddr,
    advertise: Vec<SocketAddr>,
}

impl Addresses {
    /// Of a daemon that listens there, and shall announce `advertise` instead, if there are any.
    pub(crate) fn new(listens: SocketAddr, advertise: Vec<SocketAddr>) -> Self {
        Self { listens, advertise }
    }

    /// What to announce to a metadata server at one of `servers`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] as long as no way leads there.
    pub(crate) fn to_announce(&self, servers: &[SocketAddr]) -> Result<Vec<SocketAddr>, Failure> {
        self.announcement(servers, source)
    }

    /// Where other hosts reach this one now. `None` without a way just now, or with one for this
    /// host alone: that tells of no better place than what was announced.
    pub(crate) fn for_others(&self, servers: &[SocketAddr]) -> Option<Vec<SocketAddr>> {
        self.of_others(servers, source)
    }

    /// Whether `announced` means nothing to other hosts, although nobody has chosen it.
    pub(crate) fn is_of_this_host_alone(&self, announced: &[SocketAddr]) -> bool {
        let is_loopback = |address: &SocketAddr| address.ip().to_canonical().is_loopback();
        let chosen = !self.advertise.is_empty() || !self.listens.ip().is_unspecified();
        !chosen && announced.iter().all(is_loopback)
    }

    fn announcement(
        &self,
        servers: &[SocketAddr],
        source: impl Fn(SocketAddr) -> io::Result<IpAddr>,
    ) -> Result<Vec<SocketAddr>, Failure> {
        if !self.advertise.is_empty() {
            return Ok(self.advertise.clone());
        }
        Ok(vec![reachable(self.listens, servers, source)?])
    }

    fn of_others(
        &self,
        servers: &[SocketAddr],
        source: impl Fn(SocketAddr) -> io::Result<IpAddr>,
    ) -> Option<Vec<SocketAddr>> {
        let reached = self.announcement(servers, source).ok()?;
        (!self.is_of_this_host_alone(&reached)).then_some(reached)
    }
}

/// What the cluster was told last, and whether this host has moved since.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    /// None when it is not known what the cluster believes.
    addresses: Vec<SocketAddr>,
    /// Where others reach it instead, and since when.
    elsewhere: Option<(Vec<SocketAddr>, Instant)>,
}

impl Announced {
    /// The cluster knows these.
    pub(crate) fn handle_registered(&mut self, addresses: Vec<SocketAddr>) {
        *self = Self { addresses, elsewhere: None };
    }

    /// That this host has moved could not be told: it is tried again after as long a while. When it
    /// `is_unknown` whether the cluster has heard of that, this host announces wherever it is then,
    /// also where it was before: otherwise it may be looked for at a place that it has left.
    pub(crate) fn put_off(&mut self, is_unknown: bool) {
        self.elsewhere = None;
        if is_unknown {
            self.addresses.clear();
        }
    }

    /// Tells at `now`, when others reach this host at `reached`, whether it has moved: to one other
    /// place, for [`SETTLED`].
    pub(crate) fn has_moved(&mut self, reached: Option<Vec<SocketAddr>>, now: Instant) -> bool {
        let Some(reached) = reached.filter(|reached| *reached != self.addresses) else {
            self.elsewhere = None;
            return false;
        };
        match &self.elsewhere {
            Some((place, since)) if *place == reached => {
                now.saturating_duration_since(*since) >= SETTLED
            }
            _ => {
                self.elsewhere = Some((reached, now));
                false
            }
        }
    }
}

/// A host with several ways of the same cost may send from another address each time, and all of
/// them reach it: each change of the map is fetched by everybody.
const SETTLED: Duration = Duration::from_secs(10);

/// The address at which others reach who listens on `listens`; `source` is the routing table.
fn reachable(
    listens: SocketAddr,
    servers: &[SocketAddr],
    source: impl Fn(SocketAddr) -> io::Result<IpAddr>,
) -> Result<SocketAddr, Failure> {
    if !listens.ip().is_unspecified() {
        return Ok(listens);
    }
    let is_served = |to: &&SocketAddr| listens.is_ipv6() || to.is_ipv4();
    let (mut here, mut problem) = (None, None);
    for &to in servers.iter().filter(is_served) {
        match source(to) {
            Ok(ip) if is_common(ip) => return Ok(SocketAddr::new(ip, listens.port())),
            Ok(ip) if ip.to_canonical().is_loopback() => here = here.or(Some(ip)),
            Ok(ip) => problem = Some(format!("{to} is reached from {ip} alone")),
            Err(error) => problem = Some(format!("{to}: {error}")),
        }
    }
    let Some(here) = here else {
        let problem = problem.unwrap_or_else(|| format!("it has no address like {listens}"));
        let text = format!("no way leads to the metadata server: {problem}");
        return Err(Failure::new(ErrorKind::Unavailable, text));
    };
    // The metadata server is on this host, and other daemons need not be: Debian, for one, gives a
    // host's own name a loopback address.
    let common = |&to: &SocketAddr| source(to).ok().filter(|&ip| is_common(ip));
    let ip = ELSEWHERE.iter().filter(is_served).find_map(common).unwrap_or(here);
    Ok(SocketAddr::new(ip, listens.port()))
}

/// Whether other hosts mean this one by an address.
fn is_common(ip: IpAddr) -> bool {
    let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let ip = ip.to_canonical();
    !ip.is_unspecified() && !ip.is_loopback() && !is_link_local
}

/// The address from which this host sends to `to`.
fn source(to: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket sends nothing; it only asks the routing table.
    let probe = UdpSocket::bind(SocketAddr::new(any, 0))?;
    probe.connect(to)?;
    Ok(probe.local_addr()?.ip())
}

/// Addresses that no host has (RFC 5737, RFC 3849): the way there is the default route.
const ELSEWHERE: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 9),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// A routing table with these ways: how an address begins, and from where it is reached.
    fn table(ways: &[(&str, &str)]) -> impl Fn(SocketAddr) -> io::Result<IpAddr> {
        move |to: SocketAddr| {
            let to = to.ip().to_string();
            let way = ways.iter().find(|(start, _)| to.starts_with(start));
            way.map(|(_, from)| from.parse::<IpAddr>().unwrap())
                .ok_or_else(|| io::ErrorKind::NetworkUnreachable.into())
        }
    }

    /// What is announced where the routing table has these ways.
    fn announced(
        listens: &str,
        servers: &[&str],
        ways: &[(&str, &str)],
    ) -> Result<String, ErrorKind> {
        let found = reachable(listens.parse().unwrap(), &addresses(servers), table(ways));
        found.map(|address| address.to_string()).map_err(|failure| failure.kind)
    }

    const LOCAL: (&str, &str) = ("127.", "127.0.0.1");

    #[test]
    fn who_listens_everywhere_announces_the_address_that_the_metadata_server_sees() {
        let ways = [("10.1.", "10.1.0.7"), ("2001:", "2001:db8::7"), ("192.", "172.16.0.7"), LOCAL];
        let announced = |listens: &str, servers: &[&str]| announced(listens, servers, &ways);
        assert_eq!(announced("[::]:7441", &["10.1.0.1:7440"]), Ok("10.1.0.7:7441".into()));
        assert_eq!(announced("0.0.0.0:1", &["10.1.0.1:7440"]), Ok("10.1.0.7:1".into()));
        assert_eq!(announced("[::]:1", &["[2001:db8::1]:7440"]), Ok("[2001:db8::7]:1".into()));
        let both = ["[2001:db8::1]:7440", "10.1.0.1:7440"];
        assert_eq!(announced("0.0.0.0:1", &both), Ok("10.1.0.7:1".into()), "as it listens");
        let second = ["10.9.0.1:7440", "127.0.1.1:7440", "10.1.0.1:7440"];
        assert_eq!(announced("[::]:1", &second), Ok("10.1.0.7:1".into()), "the first that helps");
        assert_eq!(announced("127.0.0.1:1", &second), Ok("127.0.0.1:1".into()), "as it is told");
    }

    #[test]
    fn without_a_way_to_the_metadata_server_nothing_is_announced() {
        let unavailable: Result<String, _> = Err(ErrorKind::Unavailable);
        assert_eq!(announced("[::]:1", &[], &[LOCAL]), unavailable, "no name was found");
        assert_eq!(announced("[::]:1", &["10.1.0.1:7440"], &[LOCAL]), unavailable);
        assert_eq!(announced("0.0.0.0:1", &["[2001:db8::1]:7440"], &[LOCAL]), unavailable);
        for nothing in ["0.0.0.0", "fe80::7"] {
            let ways = [("10.1.", nothing), ("192.", "172.16.0.7")];
            assert_eq!(announced("[::]:1", &["10.1.0.1:7440"], &ways), unavailable, "{nothing}");
        }
        let somewhere = Addresses::new("[::]:1".parse().unwrap(), addresses(&["10.1.0.9:7"]));
        assert_eq!(somewhere.to_announce(&[]).unwrap(), addresses(&["10.1.0.9:7"]));
    }

    #[test]
    fn beside_the_metadata_server_it_is_the_address_of_the_default_route_if_there_is_one() {
        let debian = &["127.0.1.1:7440"];
        let ways = [LOCAL, ("192.0.2.", "10.1.0.7"), ("2001:", "2001:db8::7")];
        assert_eq!(announced("[::]:1", debian, &ways), Ok("10.1.0.7:1".into()));
        assert_eq!(announced("[::]:1", debian, &ways[..1]), Ok("127.0.0.1:1".into()));
        let sixth = [LOCAL, ways[2]];
        assert_eq!(announced("[::]:1", debian, &sixth), Ok("[2001:db8::7]:1".into()));
        assert_eq!(announced("0.0.0.0:1", debian, &sixth), Ok("127.0.0.1:1".into()));

        let told = |listens: &str, advertise: &[&str], announced: &[&str]| {
            let own = Addresses::new(listens.parse().unwrap(), addresses(advertise));
            own.is_of_this_host_alone(&addresses(announced))
        };
        assert!(told("[::]:1", &[], &["127.0.0.1:1"]) && !told("[::]:1", &[], &["10.1.0.7:1"]));
        assert!(!told("127.0.0.1:1", &[], &["127.0.0.1:1"]), "so it was meant");
        assert!(!told("[::]:1", &["127.0.0.1:1"], &["127.0.0.1:1"]), "so it was meant");
    }

    #[test]
    fn other_hosts_reach_this_one_where_a_way_leads_to_them_and_never_at_loopback() {
        let server = addresses(&["10.1.0.1:7440", "127.0.1.1:7440"]);
        let reached = |listens: &str, advertise: &[&str], ways: &[(&str, &str)]| {
            let own = Addresses::new(listens.parse().unwrap(), addresses(advertise));
            own.of_others(&server, table(ways))
        };
        let way = ("10.1.", "10.1.0.7");
        assert_eq!(reached("[::]:1", &[], &[way, LOCAL]), Some(addresses(&["10.1.0.7:1"])));
        assert_eq!(reached("[::]:1", &[], &[LOCAL]), None, "only loopback is left");
        assert_eq!(reached("[::]:1", &[], &[]), None, "no way at all");
        // What was chosen is never asked about.
        assert_eq!(reached("127.0.0.1:1", &[], &[]), Some(addresses(&["127.0.0.1:1"])));
        let chosen = &["127.0.0.1:9"];
        assert_eq!(reached("[::]:1", chosen, &[way]), Some(addresses(chosen)));
    }

    #[test]
    fn a_host_has_moved_when_others_reach_it_at_one_other_place_for_a_while() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let [here, there, third] =
            ["10.1.0.7:1", "10.1.0.8:1", "10.1.0.9:1"].map(|address| Some(addresses(&[address])));
        let mut announced = Announced::default();
        announced.handle_registered(addresses(&["10.1.0.7:1"]));
        assert!(!announced.has_moved(here.clone(), at(0)));
        assert!(!announced.has_moved(there.clone(), at(1)));
        assert!(!announced.has_moved(there.clone(), at(10)), "not for long enough");
        assert!(announced.has_moved(there.clone(), at(11)));
        assert!(announced.has_moved(there.clone(), at(12)), "until it is registered there");
        announced.put_off(false);
        assert!(!announced.has_moved(there.clone(), at(13)));
        assert!(!announced.has_moved(there.clone(), at(22)), "the server has a rest");
        assert!(announced.has_moved(there.clone(), at(23)));
        announced.handle_registered(addresses(&["10.1.0.8:1"]));
        assert!(!announced.has_moved(there.clone(), at(40)));
        // A way that comes and goes, or another one each time, moves nobody.
        for other in [None, Some(addresses(&["10.1.0.8:1"])), third] {
            assert!(!announced.has_moved(here.clone(), at(41)));
            assert!(!announced.has_moved(other, at(50)));
            assert!(!announced.has_moved(here.clone(), at(51)));
        }
    }

    #[test]
    fn a_host_that_is_back_is_told_of_again_where_its_move_may_have_been_heard_of() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let [here, there] = ["10.1.0.7:1", "10.1.0.8:1"].map(|address| Some(addresses(&[address])));
        for is_unknown in [true, false] {
            let mut announced = Announced::default();
            announced.handle_registered(addresses(&["10.1.0.7:1"]));
            assert!(!announced.has_moved(there.clone(), at(1)));
            assert!(announced.has_moved(there.clone(), at(11)));
            announced.put_off(is_unknown);
            assert!(!announced.has_moved(here.clone(), at(12)));
            assert_eq!(announced.has_moved(here.clone(), at(22)), is_unknown);
            announced.handle_registered(addresses(&["10.1.0.7:1"]));
            assert!(!announced.has_moved(here.clone(), at(40)), "the cluster knows it now");
        }
    }

    #[test]
    fn the_routing_table_knows_the_way_to_oneself() {
        let own = source("127.0.0.1:7440".parse().unwrap()).unwrap();
        assert!(own.is_loopback(), "{own}");
    }
}
