from genius.cli.app import main

main()
