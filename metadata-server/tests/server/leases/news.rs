//! Names that one host makes where another one follows: who waits for what, and who sees what.

use millrace_protocol::lease::News;

use super::*;

/// Listens for news, which acknowledges all that was heard before.
fn follow(keeper: &mut Keeper, server: &Server) -> News {
    let (client, session) = (keeper.host.client.clone(), keeper.host.session);
    let acknowledged = keeper.acknowledged;
    let news = server.turn(move |core| {
        let incarnation = core.incarnation();
        let request = AwaitRecalls { session, incarnation, acknowledged };
        ops::lease::enrol(core, &client, &request).unwrap();
        ops::lease::listen(core, &client, &request, true).unwrap();
        ops::lease::news(core, &client, session).unwrap()
    });
    keeper.acknowledged = news.through;
    news
}

/// The operation is executed; returns what its answer waits for.
fn execute<R: Send + 'static, T: Send + 'static>(
    world: &World,
    request: R,
    operation: Run<R, T>,
) -> Vec<Wait> {
    let client = world.changes.client.clone();
    world.server.turn(move |core| {
        match core.attempt(Vec::new(), |core| operation(core, &client, &request)) {
            Ok(Step::Done(_)) => core.take_answer_waits(),
            Ok(Step::Need(need)) => panic!("it waits before: {need:?}"),
            Err(failure) if failure.kind == ErrorKind::Exists => core.take_answer_waits(),
            Err(failure) => panic!("{failure}"),
        }
    })
}

/// One host follows the directory, of which it knows what it shows, and that `new` is not there.
fn followed() -> World {
    let mut world = world();
    assert_eq!(follow(&mut world.looks, &world.server).recalls, []);
    world.look();
    let found = world.looks.find(&world.server, world.directory, "new");
    assert_eq!((found.found, found.coverage), (None, Coverage::Directory));
    world
}

/// What was told is acknowledged; returns it.
fn settle(world: &mut World, waits: &[Wait]) -> News {
    let [wait] = waits else { panic!("one is told: {waits:?}") };
    let told = follow(&mut world.looks, &world.server);
    assert!(!wait.is_over(), "it has not said so yet");
    follow(&mut world.looks, &world.server);
    assert!(wait.is_over());
    told
}

#[test]
fn who_makes_a_name_is_answered_when_who_follows_has_heard_and_so_is_a_repeated_request() {
    let mut world = followed();
    let create = world.changes.create(world.directory, "new", NewNode::Regular);
    let waits = execute(&world, create.clone(), ops::create::create);
    assert_eq!(execute(&world, create.clone(), ops::create::create), waits);
    let told = settle(&mut world, &waits);
    assert_eq!(told.recalls, [Recall::Name(world.directory, name("new"))]);
    let [shown] = &told.shown[..] else { panic!("the directory is shown") };
    assert_eq!((shown.inode, shown.size), (world.directory, 2));
    assert_eq!(execute(&world, create, ops::create::create), []);
    // It keeps its leases.
    let other = world.changes.create(world.directory, "other", NewNode::Regular);
    let waits = execute(&world, other, ops::create::create);
    assert_eq!(settle(&mut world, &waits).shown.len(), 1);
}

#[test]
fn a_link_to_a_file_that_its_maker_writes_is_told_as_well() {
    let mut world = followed();
    let made = world.changes.create(InodeId::ROOT, "written", NewNode::Regular);
    let open = Create { open: true, ..made };
    world.attempt(open, ops::create::create).done();
    let found = world.looks.find(&world.server, InodeId::ROOT, "written").found.unwrap();
    let link = MakeLink {
        caller: Caller::ROOT,
        operation: world.changes.operation(),
        inode: found.attributes.inode,
        parent: world.directory,
        name: name("new"),
    };
    let waits = execute(&world, link.clone(), ops::create::make_link);
    assert_eq!(execute(&world, link, ops::create::make_link), waits, "repeated");
    let told = settle(&mut world, &waits);
    assert_eq!(told.recalls, [Recall::Name(world.directory, name("new"))]);
}

#[test]
fn a_name_is_seen_by_nobody_before_its_maker_is_answered() {
    let mut world = followed();
    let third = Keeper::open(&world.server, 3);
    let create = world.changes.create(world.directory, "new", NewNode::Regular);
    let waits = execute(&world, create, ops::create::create);
    let names = |page: EntriesPage| -> (Vec<String>, Coverage) {
        let names = page.entries.iter().map(|at| at.entry.name.to_string()).collect();
        (names, page.coverage)
    };
    let list = |third: &Keeper, world: &World| {
        names(third.list(&world.server, world.directory, ListFrom::Cookie(0)))
    };
    let mut third = third;
    // Who looks waits a moment, and then finds what is told.
    let waits_for = |request: FindName, client: Client| {
        world.server.turn(move |core| match ops::lease::find(core, &client, &request) {
            Ok(Step::Need(Need::Told(waits))) => waits,
            other => panic!("{other:?}"),
        })
    };
    let session = third.host.session;
    let find =
        FindName { caller: Caller::ROOT, session, parent: world.directory, name: name("new") };
    assert_eq!(waits_for(find, third.host.client.clone()), waits);
    third.host.client.settled.push(Need::Told(waits.clone()));
    let found = third.find(&world.server, world.directory, "new");
    assert_eq!((found.found, found.coverage), (None, Coverage::None));
    assert_eq!(list(&third, &world), (vec!["f".to_owned()], Coverage::Names));
    // Whoever wants the name itself waits with its maker.
    let again = Create {
        exclusive: true,
        ..world.changes.create(world.directory, "new", NewNode::Directory)
    };
    assert_eq!(execute(&world, again, ops::create::create), waits);
    settle(&mut world, &waits);
    assert!(third.find(&world.server, world.directory, "new").found.is_some());
    assert_eq!(list(&third, &world), (vec!["f".to_owned(), "new".to_owned()], Coverage::Directory));
}
