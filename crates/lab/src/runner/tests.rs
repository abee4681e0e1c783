use super::*;

#[test]
fn figures_of_repetitions_stand_side_by_side() {
    let mut metrics = Vec::new();
    let both = |rate, p99| vec![Figure::higher("rate", "1/s", rate), Figure::lower("p99", "us", p99)];
    add_figures(&mut metrics, both(1.0, 2.0), 0).unwrap();
    add_figures(&mut metrics, both(3.0, 4.0), 1).unwrap();
    assert_eq!(metrics[0].values, [1.0, 3.0]);
    assert_eq!(metrics[1].values, [2.0, 4.0]);
    assert!(add_figures(&mut metrics.clone(), both(1.0, f64::NAN), 2).is_err());
    let error = add_figures(&mut metrics.clone(), vec![Figure::plain("rate", "", 9.0)], 2).unwrap_err();
    assert!(error.to_string().contains("\"p99\""), "{error}");

    // What may be lacking in one of them is left open for the row.
    let even = || Figure::lower(MAY_LACK[1], "us", 5.0);
    let mut lacking = Vec::new();
    for (repetition, figures) in [vec![even()], vec![], vec![even()]].into_iter().enumerate() {
        add_figures(&mut lacking, figures, repetition).unwrap();
        assert_eq!(lacking.len(), usize::from(repetition == 0));
    }

    pick_columns(&mut metrics, &["p99".to_owned(), "rate".to_owned()]).unwrap();
    let names: Vec<_> = metrics.iter().map(|metric| metric.name.as_str()).collect();
    assert_eq!(names, ["p99", "rate"]);
    let error = pick_columns(&mut metrics, &["colour".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("no metric colour; there are p99, rate"), "{error}");
}

#[test]
fn the_generator_is_judged_by_what_its_threads_could_use() {
    let of = |clients, queued_s| Measured { clients, queued_s, ..Measured::default() };
    // One client on two processors can use one of them.
    assert_eq!(headroom(2.0, &of(1, 0.0), 10.0, 2), Some(5.0));
    // That others kept it from running does not make it faster.
    assert_eq!(headroom(2.0, &of(1, 8.0), 10.0, 2), Some(1.0));
    assert_eq!(headroom(10.0, &of(128, 500.0), 10.0, 2), Some(2.0));
    assert_eq!(headroom(0.001, &of(1, 0.0), 10.0, 2), None);
    assert_eq!(headroom(1.0, &of(0, 0.0), 10.0, 2), None);
}

#[test]
fn a_target_that_does_not_start_fails_its_row_with_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("mongod");
    std::fs::write(&binary, "#!/bin/sh\necho the floor is wet; exit 7\n").unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).unwrap();
    let experiment = Experiment::open("insert-latency").unwrap();
    let options = RunOptions {
        scale: 0.01,
        targets: vec![Target::Folder(folder.path().to_owned())],
        data: folder.path().to_owned(),
        ..RunOptions::default()
    };
    let journal = Arc::new(Journal::silent());
    let result = run(&experiment, &options, journal, &mut Blind, &Stop::default()).unwrap();
    assert!(!result.passed());
    let why = result.rows[0].failed.as_deref().unwrap();
    assert!(why.contains("exit status: 7") && why.contains("the floor is wet"), "{why}");
    let command = &result.commands[0];
    assert_eq!(command.to, "shell");
    assert!(command.text.contains("mongod --port") && command.text.contains("--bind_ip 127.0.0.1"));
    // Nothing is left behind but the program.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_target_that_the_workload_does_not_know_is_refused_before_anything_runs() {
    let asked = |name: &str, target: &str| {
        let targets = vec![target.parse().unwrap()];
        check(&Experiment::open(name).unwrap(), &RunOptions { targets, ..RunOptions::default() })
    };
    for target in ["postgres", "postgresql://user:secret@127.0.0.1/lab"] {
        let error = asked("ycsb", target).unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("ycsb does not run on PostgreSQL; bank does"), "{text}");
        assert!(text.starts_with("--target postgres") && !text.contains("secret"), "{text}");
    }
    asked("bank", "postgresql://127.0.0.1/lab").unwrap();
    asked("ycsb", "mongodb://127.0.0.1:1").unwrap();
}

/// What a machine says to at-size with some settings.
fn room_for(room: &room::Room, scale: f64, set: &[&str]) -> Result<()> {
    let mut overrides = Overrides::default();
    set.iter().for_each(|text| overrides.add(text).unwrap());
    let row = Experiment::open("at-size").unwrap().variations(&overrides).unwrap().remove(0);
    let mut workload = workload::by_name("at-size").unwrap();
    workload.configure(&row.settings).unwrap();
    room.check(workload.as_ref(), &row, scale)
}

#[test]
fn more_than_the_machine_has_and_less_than_a_server_needs_are_refused() {
    let room = room::Room { memory: Some(8 << 30), disk: Some(10 << 30), folder: "/data".into() };
    let refused = |scale: f64, set: &[&str]| {
        let error = room_for(&room, scale, set).unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{error}");
        error.to_string()
    };
    for ok in [&[][..], &["times=5"], &["server.memory_mb=64"], &["server.memory_mb=8192", "times=1"]] {
        room_for(&room, 1.0, ok).unwrap();
    }
    let text = refused(0.05, &["server.memory_mb=99999999", "times=1"]);
    assert!(text.contains("server.memory_mb: a limit of 4.77 TiB") && text.contains("8 GiB"), "{text}");
    // Bits that are shifted out make no small limit of it.
    refused(1.0, &["server.memory_mb=17592186045440"]);
    for small in ["server.memory_mb=0", "server.memory_mb=63"] {
        let text = refused(1.0, &[small]);
        assert!(text.contains("say 64 or more"), "{text}");
    }
    let text = refused(1.0, &["times=30"]);
    assert!(text.contains("60 GiB of documents are") && text.contains("/data has only 10 GiB"), "{text}");
    refused(1.0, &["data_mb=10241"]);
    refused(1.0, &["times=1e300"]);
    room_for(&room, 0.5, &["data_mb=20480"]).unwrap();
    let text = refused(1.0, &["topology.members=3", "times=2"]);
    assert!(text.contains("4 GiB of documents on each of 3 members"), "{text}");
    // Where the system does not tell, nothing is refused.
    let unknown = room::Room { memory: None, disk: None, folder: "/data".into() };
    room_for(&unknown, 1.0, &["server.memory_mb=99999999"]).unwrap();
}

#[test]
fn this_machine_is_looked_at_before_anything_runs() {
    let asked = |target: &str| {
        let mut options = RunOptions { targets: vec![target.parse().unwrap()], ..RunOptions::default() };
        options.data = options.data.join("a folder that is not there yet");
        options.overrides.add("server.memory_mb=99999999999").unwrap();
        check(&Experiment::open("at-size").unwrap(), &options)
    };
    assert!(matches!(asked("sheaf"), Err(Error::Usage(text)) if text.contains("server.memory_mb")));
    // A deployment may run on a larger one, and is not started with limits.
    asked("mongodb://127.0.0.1:1").unwrap();
    let room = room::Room::look(&std::env::temp_dir().join("neither/is/this"));
    assert!(room.memory.is_some_and(|memory| memory > 1 << 20) && room.disk.is_some());
}
