//! A server that is killed and comes back.

use std::{
    env,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    ops::Range,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_protocol::session::Role;
use millrace_runtime::{Random, Shutdown};
use millrace_transport::{CallOptions, Identity, Peer, Server, TransportSettings};
use millrace_types::ErrorKind;

use crate::world::{
    Echo, PATIENCE, SERVER, bundle, endless, endpoints_with, hello, soon, target_at,
};

const BUNDLE: &str = "MILLRACE_TEST_BUNDLE";
const BIND: &str = "MILLRACE_TEST_BIND";

/// Not a test by itself: the body of the server process that the test below starts and kills.
#[tokio::test]
#[ignore = "run by the test that kills it"]
#[expect(clippy::print_stderr, reason = "tells the test which port it got")]
async fn server_process() {
    let (Ok(bundle), Ok(bind)) = (env::var(BUNDLE), env::var(BIND)) else {
        return;
    };
    let identity = Identity::from_pem(&bundle).unwrap();
    let service = Arc::new(Echo { seen: Arc::default() });
    let shutdown = Shutdown::new();
    let settings = TransportSettings::default();
    let bind = bind.parse().unwrap();
    let server = Server::start(&identity, bind, settings, service, &shutdown).unwrap();
    eprintln!("listening {}", server.local_addr());
    std::future::pending::<()>().await;
}

struct ServerProcess(Child, SocketAddr);

impl ServerProcess {
    /// `None`: it cannot listen there.
    fn start(bundle: &str, bind: SocketAddr) -> Option<Self> {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "restart::server_process", "--ignored", "--nocapture"])
            .env(BUNDLE, bundle)
            .env(BIND, bind.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut server = Self(child, bind);
        server.1 = lines
            .find_map(|line| Some(line.unwrap().strip_prefix("listening ")?.parse().unwrap()))?;
        Some(server)
    }

    /// At a port that the system gives to nobody who asks for any, so that it is still free when
    /// the server comes back.
    fn start_somewhere(bundle: &str) -> Self {
        let random = Random::system();
        let mut ports = (0..64).map(|_| u16::try_from(random.within(PORTS)).unwrap());
        let server = ports.find_map(|port| Self::start(bundle, ([127, 0, 0, 1], port).into()));
        server.expect("a port is free")
    }

    /// SIGKILL: no close frame is sent.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Above the ports of services, below those of dev clusters and those that Linux gives out itself.
const PORTS: Range<u64> = 10_000..16_384;

/// Kills the server with a request out, lets it be away for `away`, and returns how long after its
/// return the next request is answered.
async fn away_for(away: Duration, settings: &TransportSettings) -> Duration {
    let bundle = bundle(Role::Target, SERVER);
    let mut server = ServerProcess::start_somewhere(&bundle);
    let address = server.1;
    let peer = Peer::new(&endpoints_with(Role::Client, settings.clone()), target_at(address));
    let before = peer.call_until(&hello(1), soon()).await.unwrap().incarnation;
    let pending = tokio::spawn({
        let peer = peer.clone();
        async move { peer.call(&endless(), soon()).await }
    });
    let waiting = tokio::spawn({
        let peer = peer.clone();
        async move {
            let options = CallOptions::control(PATIENCE);
            let mut last = peer.call_until(&hello(2), options).await.unwrap();
            while last.incarnation == before {
                last = peer.call_until(&hello(2), options).await.unwrap();
            }
            Instant::now()
        }
    });
    server.kill();
    tokio::time::sleep(away).await;
    let server = ServerProcess::start(&bundle, address).unwrap();
    let back = Instant::now();
    let answered = waiting.await.unwrap();
    assert_eq!(pending.await.unwrap().unwrap_err().kind, ErrorKind::Unavailable);
    assert!(peer.connection_number() > 1, "the loss is visible");
    drop(server);
    answered.saturating_duration_since(back)
}

#[tokio::test]
async fn requests_go_on_within_a_second_of_a_killed_servers_return() {
    let default = TransportSettings::default();
    let over_quic = TransportSettings { same_host_streams: 0, ..default.clone() };
    for (away_ms, settings) in
        [(0, &default), (700, &default), (2_500, &default), (0, &over_quic), (2_500, &over_quic)]
    {
        let limit = Duration::from_secs(1);
        let mut waited = vec![away_for(Duration::from_millis(away_ms), settings).await];
        // A busy machine may hold one up. Were a loss not noticed at once, all would take seconds.
        while waited.len() < 5 && waited.iter().all(|waited| *waited >= limit) {
            waited.push(away_for(Duration::from_millis(away_ms), settings).await);
        }
        assert!(waited.iter().any(|waited| *waited < limit), "away for {away_ms} ms: {waited:?}");
    }
}
