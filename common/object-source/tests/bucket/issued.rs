//! Keys that a service gives for a while: the instance metadata service, and STS for a web
//! identity. A real server has made them, and takes no others.
//!
//! Whom to ask comes with the environment, so the bucket is opened in a process of its own, which
//! does what it is told line by line.

use std::{
    env, fs,
    io::{self, BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use futures::TryStreamExt as _;
use jiff::{SignedDuration, Timestamp};
use millrace_object_source::{Bucket, Condition, Error, LinkSpec, Metadata, Settings};
use millrace_tests::{
    bucket::{Bucket as Server, TemporaryKeys},
    hostile::{Asked, HostileProxy},
    issuer::{Issuer, ROLE, Trouble},
};
use tokio::runtime::Runtime;

/// Names the endpoint of the bucket to the process that uses it.
const ENDPOINT: &str = "MILLRACE_TEST_ISSUED_ENDPOINT";

/// What answers begin with, among what the harness of the test says.
const ANSWER: &str = "@ ";

const WEB_TOKEN: &str = "token-of-a-web-identity";

/// Reads through object_store, and the others by requests of our own.
const REQUESTS: [Asked; 5] = [Asked::List, Asked::Get, Asked::Create, Asked::Part, Asked::Complete];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Metadata,
    Sts,
}

/// Uses the bucket as each line of the standard input says.
async fn obey(endpoint: &str) {
    let settings =
        Settings { retries_max: 1, check_timeout: Duration::from_secs(5), ..Settings::default() };
    let spec = LinkSpec::new("s3://data", Some(endpoint), Some("us-east-1"), None).unwrap();
    let bucket = Bucket::open(&spec, &settings).unwrap();
    let mut answers = io::stdout();
    for line in io::stdin().lines() {
        let (word, key) = line.as_ref().unwrap().split_once(' ').unwrap();
        let done = match word {
            "work" => work(&bucket, key).await,
            "check" => bucket.check("", true).await,
            "answers" => bucket.answers("").await,
            "read" => bucket.head(key).await.map(drop),
            other => panic!("no such word: {other}"),
        };
        let said =
            done.map_or_else(|error| format!("{:?}: {error}", error.kind()), |()| "done".into());
        writeln!(answers, "{ANSWER}{said}").unwrap();
    }
}

/// Makes an object by parts, on condition that there is none, finds it and reads it.
async fn work(bucket: &Bucket, key: &str) -> Result<(), Error> {
    let body = Bytes::from(vec![7; 100_000]);
    let upload = bucket.create_upload(key, &Metadata::default()).await?;
    let part = bucket.put_part(key, &upload, 1, 0, vec![body.clone()]).await?;
    let tag = bucket.complete_upload(key, &upload, &[part], &Condition::Absent).await?;
    assert!(!bucket.list_directory("", None).await?.entries.is_empty());
    let read = bucket.get_range(key, 10..90_000, &tag).await?;
    let read: Vec<Bytes> = read.try_collect().await?;
    assert!(read.concat() == body[10..90_000]);
    Ok(())
}

/// The process that uses the bucket.
struct User {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl User {
    fn start(test: &str, endpoint: &str, environment: &[(&str, String)]) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("AWS_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args(["--exact", test, "--nocapture"])
            .env(ENDPOINT, endpoint)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .env_remove("SSL_CERT_DIR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    /// Has it do something, and returns what it says of that.
    fn ask(&mut self, word: &str, key: &str) -> String {
        writeln!(self.input, "{word} {key}").unwrap();
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(said) = line.strip_prefix(ANSWER) {
                return said.trim().to_owned();
            }
            line.clear();
        }
        panic!("it has ended instead of {word}");
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if self.child.kill().is_ok() {
            self.child.wait().unwrap();
        }
    }
}

struct World {
    user: User,
    proxy: HostileProxy,
    server: Server,
    issuer: Issuer,
    /// How the service is called where it fails.
    name: String,
    folder: tempfile::TempDir,
}

impl World {
    fn new(service: Service, test: &str) -> Self {
        let server = Server::start_with_sts().unwrap();
        let proxy = HostileProxy::for_endpoint(&server.endpoint()).unwrap();
        let issuer = Issuer::start().unwrap();
        issuer.take_token(WEB_TOKEN);
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| -> String {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (environment, name) = match service {
            Service::Metadata => {
                let endpoint = issuer.metadata_endpoint();
                let name = format!("the instance metadata service at {endpoint}");
                (vec![("AWS_METADATA_ENDPOINT", endpoint)], name)
            }
            Service::Sts => {
                let endpoint = issuer.sts_endpoint();
                let name = format!("(AWS_WEB_IDENTITY_TOKEN_FILE) at {endpoint}");
                let environment = vec![
                    ("AWS_WEB_IDENTITY_TOKEN_FILE", file("token", WEB_TOKEN)),
                    ("AWS_ROLE_ARN", ROLE.to_owned()),
                    ("AWS_ENDPOINT_URL_STS", endpoint),
                    ("SSL_CERT_FILE", file("sts.pem", issuer.certificate())),
                ];
                (environment, name)
            }
        };
        let user = User::start(test, &proxy.endpoint(), &environment);
        Self { user, proxy, server, issuer, name, folder }
    }

    /// Everything works, and is signed with these keys.
    fn works(&mut self, key: &str, keys: &TemporaryKeys) {
        for asked in REQUESTS {
            drop(self.proxy.signers(asked));
        }
        assert_eq!(self.user.ask("work", key), "done");
        for asked in REQUESTS {
            let signers = self.proxy.signers(asked);
            let ids: Vec<_> = signers.keys().collect();
            assert_eq!(ids, [&keys.id], "{asked:?}");
        }
    }

    /// A check and a read say who gives no keys, and why; nothing of what came instead.
    fn is_told(&mut self, trouble: Trouble, kind: &str, words: &str, secrets: &[&str]) {
        self.issuer.fail(Some(trouble));
        let asked: &[&str] =
            if trouble == Trouble::Silence { &["check"] } else { &["check", "read"] };
        for word in asked {
            let said = self.user.ask(word, "made-1");
            assert!(said.starts_with(kind), "{trouble:?} {word}: {said}");
            assert!(
                said.contains(&self.name) && said.contains(words),
                "{trouble:?} {word}: {said}"
            );
            for secret in secrets {
                assert!(!said.contains(secret), "{trouble:?} {word}: {said}");
            }
        }
        self.issuer.fail(None);
        assert_eq!(self.user.ask("read", "made-1"), "done", "as soon as there are keys again");
    }
}

fn keys_are_taken_missed_and_renewed(service: Service, test: &str) {
    let mut world = World::new(service, test);
    let first = world.server.temporary_keys().unwrap();
    // Said to have expired, so that each request asks for them anew.
    world.issuer.give(&first, Timestamp::now() - SignedDuration::from_secs(1));
    world.works("made-1", &first);

    let refused = match service {
        Service::Metadata => "it answers 404 Not Found",
        Service::Sts => "it answers 400 Bad Request (InvalidIdentityToken)",
    };
    let secrets = [first.secret.as_str(), &first.token, WEB_TOKEN];
    world.is_told(Trouble::Unknown, "BucketDenied", refused, &secrets);
    world.is_told(Trouble::Garbage, "BucketDenied", "what it answers is none", &secrets);
    world.is_told(Trouble::Silence, "BucketDenied", "no credentials within 5 s from", &secrets);
    // To whoever waits for the bucket it is away until there are keys again.
    world.issuer.fail(Some(Trouble::Silence));
    let said = world.user.ask("answers", "");
    assert!(said.starts_with("BucketUnavailable: no answer of "), "{said}");
    world.issuer.fail(None);
    assert_eq!(world.user.ask("answers", ""), "done");

    // What is given next counts for each request from now on, and for an hour.
    let second = world.server.temporary_keys().unwrap();
    assert_ne!(first.id, second.id);
    let next_token = format!("next-{WEB_TOKEN}");
    fs::write(Path::new(world.folder.path()).join("token"), &next_token).unwrap();
    world.issuer.take_token(&next_token);
    let given = world.issuer.given();
    world.issuer.give(&second, Timestamp::now() + SignedDuration::from_hours(1));
    world.works("made-2", &second);
    world.works("made-3", &second);
    assert_eq!(world.issuer.given(), given + 1, "nobody asks for keys that are valid");
}

#[test]
fn keys_of_the_instance_metadata_service_are_taken_missed_and_renewed() {
    const SELF: &str = "issued::keys_of_the_instance_metadata_service_are_taken_missed_and_renewed";
    match env::var(ENDPOINT) {
        Ok(endpoint) => Runtime::new().unwrap().block_on(obey(&endpoint)),
        Err(_) => keys_are_taken_missed_and_renewed(Service::Metadata, SELF),
    }
}

#[test]
fn keys_of_a_web_identity_are_taken_missed_and_renewed() {
    const SELF: &str = "issued::keys_of_a_web_identity_are_taken_missed_and_renewed";
    match env::var(ENDPOINT) {
        Ok(endpoint) => Runtime::new().unwrap().block_on(obey(&endpoint)),
        Err(_) => keys_are_taken_missed_and_renewed(Service::Sts, SELF),
    }
}
