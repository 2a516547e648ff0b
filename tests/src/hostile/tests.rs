//! Against a server of a few lines, over plain sockets.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
};

use super::{request::Dialect, *};

const BODY: &str = "0123456789";

/// Answers every request with [`BODY`], or with the request's head where its path says so.
fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).unwrap();
            let body = if head.contains("/echo") { head.as_str() } else { BODY };
            let len = body.len();
            let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{body}");
            drop(stream.write_all(text.as_bytes()));
        }
    });
    format!("http://{address}")
}

/// What comes until the connection ends, and whether it ended with an error.
fn ask(proxy: &HostileProxy, target: &str) -> (String, bool) {
    let mut stream = TcpStream::connect(proxy.address).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: signed.example\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut bytes = Vec::new();
    let failed = stream.read_to_end(&mut bytes).is_err();
    (String::from_utf8(bytes).unwrap(), failed)
}

#[test]
fn a_request_reaches_the_server_as_the_client_signed_it() {
    let proxy = HostileProxy::for_endpoint(&server()).unwrap();
    let (answer, _) = ask(&proxy, "/echo/a%20b?x=%2F");
    assert!(answer.contains("GET /echo/a%20b?x=%2F HTTP/1.1"), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("host: signed.example"), "{answer}");
}

#[test]
fn a_rule_is_for_its_key_and_as_often_as_it_says() {
    let proxy = HostileProxy::for_endpoint(&server()).unwrap();
    proxy.add(Rule::next(1, Asked::Get, Fault::SlowDown).of("key"));
    assert!(ask(&proxy, "/data/other").0.ends_with(BODY));
    assert!(ask(&proxy, "/data/key").0.contains("SlowDown"));
    assert!(ask(&proxy, "/data/key").0.ends_with(BODY));
    assert_eq!(proxy.done(Asked::Get, "503"), 1);
}

#[test]
fn bodies_are_cut_reset_damaged_and_measured_wrongly() {
    let proxy = HostileProxy::for_endpoint(&server()).unwrap();
    let told = |fault| {
        proxy.clear();
        proxy.add(Rule::always(Asked::Get, fault));
        ask(&proxy, "/data/key")
    };
    let (cut, failed) = told(Fault::CutAfter(4));
    assert!(cut.ends_with("\r\n\r\n0123") && cut.contains("content-length: 10"), "{cut}");
    assert!(!failed, "closed in an orderly way");
    let (reset, failed) = told(Fault::ResetAfter(4));
    assert!(reset.ends_with("\r\n\r\n0123") && failed, "{reset}");
    let (reset, failed) = told(Fault::Reset);
    assert!(reset.is_empty() && failed, "{reset}");
    let (flipped, _) = told(Fault::FlippedBit(1));
    assert!(flipped.ends_with("\r\n\r\n0!23456789"), "{flipped}");
    let (long, _) = told(Fault::LengthTooLong(3));
    assert!(long.contains("content-length: 13") && long.ends_with(BODY), "{long}");
    let (short, _) = told(Fault::LengthTooShort(3));
    assert!(short.contains("content-length: 7") && short.ends_with("0123456"), "{short}");
    let (slow, _) = told(Fault::Trickle(3, Duration::from_millis(1)));
    assert!(slow.ends_with(BODY), "{slow}");
}

#[test]
fn a_silent_request_is_held_until_the_weather_is_fair() {
    let proxy = HostileProxy::for_endpoint(&server()).unwrap();
    proxy.add(Rule::always(Asked::Get, Fault::Silence));
    thread::scope(|scope| {
        let asked = scope.spawn(|| ask(&proxy, "/data/key"));
        crate::program::wait_for("a held request", || (proxy.held() == 1).then_some(())).unwrap();
        proxy.clear();
        assert!(asked.join().unwrap().1, "cut");
    });
    assert_eq!(proxy.held(), 0);
    assert!(ask(&proxy, "/data/key").0.ends_with(BODY));
}

#[test]
fn a_storm_does_the_same_each_time() {
    let run = || {
        let proxy = HostileProxy::for_endpoint(&server()).unwrap();
        proxy.storm(Storm { seed: 7, one_in: 2 });
        let answers: Vec<_> = (0..20).map(|key| ask(&proxy, &format!("/data/{key}"))).collect();
        assert!(answers.iter().any(|(answer, _)| answer.ends_with(BODY)));
        let mut told = proxy.told();
        told.retain(|c| c != ' ');
        told
    };
    assert_eq!(run(), run());
}

#[test]
fn pages_are_doubled_reversed_and_overlap() {
    let entry = |key| format!("<Contents><Key>{key}</Key></Contents>");
    let keys = ["a", "b", "c"].map(entry).concat();
    let document = format!(
        "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\"><Prefix>p</Prefix>{keys}\
         <IsTruncated>false</IsTruncated></ListBucketResult>"
    );
    let mut pages = Pages::default();
    let of = |page: &str| page.matches("<Key>").count();
    let first = pages.damage(&document, Dialect::S3, ListFault::Pages(2));
    assert!(first.contains("<IsTruncated>true") && first.contains("<Prefix>p"), "{first}");
    assert!(first.find("<Key>b") < first.find("<Key>a"), "{first}");
    assert_eq!(of(&first), 4);
    let last = pages.page("page-1-1").unwrap();
    assert!(last.contains("<IsTruncated>false") && last.contains("<Key>b"), "{last}");
    assert_eq!(of(last), 4);
    let circle = pages.damage(&document, Dialect::S3, ListFault::Circle(1));
    assert_eq!(pages.page("page-2-0"), Some(circle.as_str()));
    assert!(!pages.damage(&document, Dialect::S3, ListFault::DeadEnd(1)).contains("Token"));
    assert_eq!(of(&pages.damage(&document, Dialect::S3, ListFault::Empty)), 0);
}

#[test]
fn azures_listings_are_taken_apart_too() {
    let blobs = ["a", "b"].map(|key| format!("<Blob><Name>{key}</Name></Blob>")).concat();
    let document = format!(
        "\u{feff}<?xml version=\"1.0\"?><EnumerationResults ContainerName=\"c\"><Prefix/>\
         <Delimiter>/</Delimiter><Blobs><BlobPrefix><Name>d/</Name></BlobPrefix>{blobs}</Blobs>\
         <NextMarker/></EnumerationResults>"
    );
    let mut pages = Pages::default();
    let first = pages.damage(&document, Dialect::Azure, ListFault::Pages(2));
    let names = first.matches("<Name>").count();
    assert!(names == 4 && first.contains("<NextMarker>page-1-1</NextMarker>"), "{first}");
    assert!(first.contains("<Delimiter>/") && first.contains("<Blobs><Blob><Name>a"), "{first}");
    let last = pages.page("page-1-1").unwrap();
    assert!(last.contains("<Name>b") && last.contains("<NextMarker></NextMarker>"), "{last}");
}
