from tilefold.cli import main

main(prog_name="tilefold")
