//! What the machine may refuse: folders, disks, pipes. One line, exit 2, nothing half-written.

use crate::support::{Place, sound_tensors, stderr};
use assert_cmd::cargo::cargo_bin;
use std::process::{Command, Output, Stdio};

const JOBS: [&str; 3] =
    ["--shape 1,1,16,8", "run --shape 1,1,16,8 --families gaussian", "bench --shape 1,1,16,8 --iterations 3"];

fn assert_one_line(output: &Output, arguments: &str) {
    let line = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{arguments}: {line}");
    assert!(line.starts_with("error: ") && line.lines().count() == 1, "{arguments}: {line}");
}

#[test]
fn a_folder_that_cannot_be_written_is_found_out_before_the_work() {
    let place = Place::new();
    std::fs::write(place.file("file"), "x").unwrap();
    for job in JOBS {
        for folder in ["file", "file/below"] {
            let arguments = format!("{job} --records {folder}");
            let output = place.run(&arguments);
            assert_one_line(&output, &arguments);
            assert!(stderr(&output).contains("--records"), "{}", stderr(&output));
            assert!(output.stdout.is_empty());
        }
    }
    assert_eq!(place.contents(), ["file"]);
}

/// Runs in a shell that allows files of one block only: the record does not fit, as on a full disk.
#[cfg(unix)]
fn with_a_full_disk(place: &Place, arguments: &str) -> Output {
    let script = format!("trap '' XFSZ; ulimit -f 1; exec \"$0\" {arguments}");
    Command::new("/bin/sh")
        .args(["-c", &script])
        .arg(cargo_bin("eightfold"))
        .current_dir(place.path())
        .output()
        .unwrap()
}

#[test]
#[cfg(unix)]
fn a_full_disk_leaves_nothing_behind() {
    let place = Place::new();
    place.write("in", &sound_tensors(&[1, 2, 64, 64]));
    let attend = "attend --inputs in --to out";
    for arguments in JOBS.into_iter().chain([attend]) {
        let output = with_a_full_disk(&place, arguments);
        assert_one_line(&output, arguments);
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(
            !shown.contains("p50") && !shown.contains("rel. L2"),
            "{arguments} printed a result that was not recorded"
        );
        assert_eq!(place.contents(), ["in"], "{arguments}");
    }
}

#[test]
#[cfg(unix)]
fn a_full_disk_keeps_the_old_output() {
    let place = Place::new();
    place.write("in", &sound_tensors(&[1, 2, 64, 64]));
    std::fs::write(place.file("out"), "old").unwrap();
    assert_one_line(&with_a_full_disk(&place, "attend --inputs in --to out"), "attend");
    assert_eq!(std::fs::read(place.file("out")).unwrap(), b"old");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_standard_output_is_an_error() {
    for arguments in ["explain", "explain --json", "--help"] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let child = Command::new(cargo_bin("eightfold"))
            .args(arguments.split_whitespace())
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(child.status.code(), Some(2), "{arguments}");
    }
}

#[test]
#[cfg(unix)]
fn a_reader_that_goes_away_is_no_error() {
    for arguments in ["explain", "--help", "explain --json"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(cargo_bin("eightfold"))
            .args(arguments.split_whitespace())
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{arguments}");
    }
}

#[test]
#[cfg(unix)]
fn nobody_listening_to_complaints_is_no_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status =
        Command::new(cargo_bin("eightfold")).args(["explain", "--shape", "nothing"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(2));
}
